#include "h2o/store/codec/frame.h"

#include "h2o/store/codec/entropy.h"
#include "h2o/store/codec/rows.h"

#include <cstring>

namespace {

constexpr uint8_t MAGIC[4] = { 'H', '2', 'K', 'V' };
constexpr size_t  HASH_AT  = H2O_CODEC_HEADER_BYTES - 8;

[[noreturn]] void fail(const std::string & what) {
    throw h2o_codec_error("[codec] " + what);
}

void write_u64(uint8_t * out, uint64_t value) {
    for (int i = 0; i < 8; ++i) {
        out[i] = value >> 8*i;
    }
}

uint64_t hash_of(const uint8_t * data, size_t n) {
    const uint64_t seed = h2o_codec_hash(data, HASH_AT, 0);
    return h2o_codec_hash(data + H2O_CODEC_HEADER_BYTES, n - H2O_CODEC_HEADER_BYTES, seed);
}

struct reader {
    const uint8_t * data;
    size_t          n;

    const uint8_t * take(size_t n_bytes) {
        if (n_bytes > n) {
            fail("the frame is damaged: it ends too early");
        }
        const uint8_t * res = data;
        data += n_bytes;
        n    -= n_bytes;
        return res;
    }

    template <typename T> T number() {
        const uint8_t * bytes = take(sizeof(T));
        uint64_t res = 0;
        for (size_t i = 0; i < sizeof(T); ++i) {
            res |= (uint64_t) bytes[i] << 8*i;
        }
        return (T) res;
    }
};

h2o_codec_frame_plane read_plane(reader & in, uint64_t n_raw) {
    h2o_codec_frame_plane res;
    const size_t n_before = in.n;

    const uint8_t predictor = in.number<uint8_t>();
    const uint8_t n_streams = in.number<uint8_t>();
    if (predictor >= H2O_CODEC_PREDICTOR_COUNT) {
        fail("the frame is damaged: there is no predictor " + std::to_string(predictor));
    }
    const uint32_t n_max = predictor == H2O_CODEC_PREDICTOR_CONTEXT ? H2O_CODEC_MAX_CONTEXTS : 1;
    if (n_streams < 1 || n_streams > n_max) {
        fail("the frame is damaged: a plane has " + std::to_string(n_streams) + " streams");
    }
    res.predictor    = (h2o_codec_predictor) predictor;
    res.thresholds.n = n_streams - 1;
    std::memcpy(res.thresholds.at.data(), in.take(n_streams - 1), n_streams - 1);

    uint64_t sum = 0;
    for (uint32_t i = 0; i < n_streams; ++i) {
        h2o_codec_stream stream;
        const uint8_t entropy = in.number<uint8_t>();
        if (entropy >= H2O_CODEC_ENTROPY_COUNT) {
            fail("the frame is damaged: there is no entropy code " + std::to_string(entropy));
        }
        stream.entropy = (h2o_codec_entropy) entropy;
        stream.n_raw   = in.number<uint32_t>();
        stream.n_bytes = in.number<uint32_t>();
        stream.data    = in.take(stream.n_bytes);
        res.streams.push_back(stream);
        sum += stream.n_raw;
    }
    if (sum != n_raw) {
        fail("the frame is damaged: the streams of a plane do not have as many bytes as the plane");
    }
    res.n_bytes = n_before - in.n;
    return res;
}

} // namespace

h2o_codec_frame h2o_codec_read_frame(const uint8_t * data, size_t n) {
    if (n < H2O_CODEC_HEADER_BYTES || std::memcmp(data, MAGIC, sizeof(MAGIC)) != 0) {
        fail("this is no frame: expected " + std::to_string(H2O_CODEC_HEADER_BYTES) + " bytes or more that begin with H2KV");
    }
    reader in = { data + sizeof(MAGIC), n - sizeof(MAGIC) };
    const uint8_t version = in.number<uint8_t>();
    if (version != H2O_CODEC_VERSION) {
        fail("the frame has version " + std::to_string(version) + ", expected " + std::to_string(H2O_CODEC_VERSION));
    }
    const uint8_t type     = in.number<uint8_t>();
    const uint8_t n_planes = in.number<uint8_t>();
    const uint8_t zero     = in.number<uint8_t>();

    h2o_codec_frame res{};
    res.shape.n_rows    = in.number<uint32_t>();
    res.shape.row_bytes = in.number<uint32_t>();
    res.n_kept          = in.number<uint32_t>();
    const uint64_t size = in.number<uint64_t>();
    const uint64_t hash = in.number<uint64_t>();
    if (size != n) {
        fail("the frame has " + std::to_string(n) + " bytes, and should have " + std::to_string(size));
    }
    if (hash != hash_of(data, n)) {
        fail("the frame is damaged: its checksum is wrong");
    }
    if (type >= H2O_CODEC_TYPE_COUNT || zero != 0) {
        fail("the frame is damaged: there is no type " + std::to_string(type));
    }
    res.shape.type = (h2o_codec_type) type;
    const auto &   planes      = h2o_codec_planes_of(res.shape.type);
    const uint32_t block_bytes = h2o_codec_block_bytes(res.shape.type);
    if (res.shape.row_bytes % block_bytes != 0 || res.n_kept > res.shape.n_rows || (n_planes != 0 && n_planes != planes.size())) {
        fail("the frame is damaged: its header contradicts itself");
    }

    if (n_planes == 0) {
        if (in.n != res.shape.bytes()) {
            fail("the frame is damaged: its rows have another size");
        }
        res.raw = in.data;
        return res;
    }
    if (res.n_kept == 0 || res.shape.row_bytes == 0) {
        fail("the frame is damaged: it has planes of no bytes");
    }
    if (res.n_kept < res.shape.n_rows) {
        res.equal_rows = in.take(h2o_codec_equal_rows_bytes(res.shape.n_rows, res.n_kept));
    }
    for (const h2o_codec_plane & plane : planes) {
        res.planes.push_back(read_plane(in, (uint64_t) res.n_kept*plane.width(res.shape.row_bytes, block_bytes)));
    }
    if (in.n != 0) {
        fail("the frame is damaged: it goes on after its last plane");
    }
    return res;
}

void h2o_codec_write_header(std::vector<uint8_t> & frame, const h2o_codec_shape & shape, uint32_t n_kept, uint8_t n_planes) {
    uint8_t * out = frame.data();
    std::memcpy(out, MAGIC, sizeof(MAGIC));
    out[4] = H2O_CODEC_VERSION;
    out[5] = shape.type;
    out[6] = n_planes;
    out[7] = 0;
    h2o_codec_write_u32(out +  8, shape.n_rows);
    h2o_codec_write_u32(out + 12, shape.row_bytes);
    h2o_codec_write_u32(out + 16, n_kept);
    write_u64(out + 20, frame.size());
    write_u64(out + HASH_AT, hash_of(out, frame.size()));
}
