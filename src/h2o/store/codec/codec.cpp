#include "h2o/store/codec/codec.h"

#include <zdict.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

namespace {

constexpr int    LEVEL        = 1;       // of zstd: there are few matches to find
constexpr size_t SAMPLE_BYTES = 1 << 18; // of the plane, from which a code is made
constexpr size_t FRAME_BYTES  = 32;      // more than the overhead of a frame
constexpr size_t MAX_DICT     = 1024;    // bytes: entropy tables, and hardly anything to match

// The N bytes from OFFSET on of each ggml block are the plane, which zstd shortens: high bytes, quants.
template <size_t BLOCK, size_t OFFSET, size_t N>
void split(const uint8_t * __restrict blocks, size_t n_blocks, uint8_t * __restrict plane, uint8_t * __restrict rest) {
    for (size_t i = 0; i < n_blocks; ++i, blocks += BLOCK, plane += N, rest += BLOCK - N) {
        std::memcpy(plane, blocks + OFFSET, N);
        std::memcpy(rest, blocks, OFFSET);
        std::memcpy(rest + OFFSET, blocks + OFFSET + N, BLOCK - OFFSET - N);
    }
}

template <size_t BLOCK, size_t OFFSET, size_t N>
void merge(const uint8_t * __restrict plane, const uint8_t * __restrict rest, size_t n_blocks,
        uint8_t * __restrict blocks) {
    for (size_t i = 0; i < n_blocks; ++i, blocks += BLOCK, plane += N, rest += BLOCK - N) {
        std::memcpy(blocks + OFFSET, plane, N);
        std::memcpy(blocks, rest, OFFSET);
        std::memcpy(blocks + OFFSET + N, rest + OFFSET, BLOCK - OFFSET - N);
    }
}

struct layout {
    uint32_t block_bytes;
    uint32_t plane_bytes; // of a block
    void (*split)(const uint8_t * blocks, size_t n_blocks, uint8_t * plane, uint8_t * rest);
    void (*merge)(const uint8_t * plane, const uint8_t * rest, size_t n_blocks, uint8_t * blocks);
};

template <size_t BLOCK, size_t OFFSET, size_t N>
constexpr layout LAYOUT = { BLOCK, N, split<BLOCK, OFFSET, N>, merge<BLOCK, OFFSET, N> };

const layout & layout_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16:
        case GGML_TYPE_BF16: return LAYOUT< 2, 1,  1>;
        case GGML_TYPE_F32:  return LAYOUT< 4, 3,  1>;
        case GGML_TYPE_Q8_0: return LAYOUT<34, 2, 32>;
        case GGML_TYPE_Q4_0: return LAYOUT<18, 2, 16>;
        case GGML_TYPE_Q4_1: return LAYOUT<20, 4, 16>;
        case GGML_TYPE_Q5_0: return LAYOUT<22, 6, 16>;
        case GGML_TYPE_Q5_1: return LAYOUT<24, 8, 16>;
        default:             return LAYOUT< 1, 0,  1>; // any bytes
    }
}

size_t checked(size_t n) {
    if (ZSTD_isError(n)) {
        throw h2o_codec_error(std::string("zstd: ") + ZSTD_getErrorName(n));
    }
    return n;
}

template <typename T>
T * checked(T * p) {
    if (!p) {
        throw h2o_codec_error("zstd: no memory");
    }
    return p;
}

ZSTD_CCtx * compressor() {
    static thread_local std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx *)> res(nullptr, ZSTD_freeCCtx);
    if (!res) {
        res.reset(checked(ZSTD_createCCtx()));
        ZSTD_CCtx_setParameter(res.get(), ZSTD_c_compressionLevel, LEVEL);
        ZSTD_CCtx_setParameter(res.get(), ZSTD_c_checksumFlag, 1);
        ZSTD_CCtx_setParameter(res.get(), ZSTD_c_contentSizeFlag, 0);
        ZSTD_CCtx_setParameter(res.get(), ZSTD_c_dictIDFlag, 0);
    }
    return res.get();
}

ZSTD_DCtx * decompressor() {
    static thread_local std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx *)> res(nullptr, ZSTD_freeDCtx);
    if (!res) {
        res.reset(checked(ZSTD_createDCtx()));
    }
    return res.get();
}

} // namespace

h2o_codec_code::h2o_codec_code(const uint8_t * rows, uint32_t n, ggml_type type, uint32_t row_bytes,
        uint32_t unit_rows) : type(type), row_bytes(row_bytes), unit_rows(unit_rows),
      width(row_bytes/layout_of(type).block_bytes*layout_of(type).plane_bytes) {
    const uint32_t n_rows   = std::min<size_t>(n, SAMPLE_BYTES/std::max(width, 1u));
    const size_t   n_blocks = (size_t) n_rows*row_bytes/layout_of(type).block_bytes;
    std::vector<uint8_t> plane((size_t) n_rows*width), rest((size_t) n_rows*(row_bytes - width)), best;
    layout_of(type).split(rows, n_blocks, plane.data(), rest.data());

    std::vector<size_t> sizes; // of the units' planes
    for (uint32_t r = 0; r < n_rows; r += unit_rows) {
        sizes.push_back((size_t) std::min(unit_rows, n_rows - r)*width);
    }
    size_t n_best = SIZE_MAX;
    for (const predictor p : { predictor::RAW, predictor::DELTA, predictor::XOR }) {
        std::vector<uint8_t> left = plane, encoded(ZSTD_compressBound(plane.size()));
        for (uint32_t r = 0; r < n_rows; r += unit_rows) {
            predict(p, left.data() + (size_t) r*width, std::min(unit_rows, n_rows - r));
        }
        const size_t n_encoded =
                checked(ZSTD_compress(encoded.data(), encoded.size(), left.data(), left.size(), LEVEL));
        if (n_encoded < n_best) {
            n_best = n_encoded;
            chosen = p;
            best   = std::move(left);
        }
    }
    std::vector<uint8_t> dict(MAX_DICT);
    ZDICT_params_t params = {};
    params.compressionLevel = LEVEL;
    const size_t n_dict = ZDICT_finalizeDictionary(dict.data(), dict.size(), best.data(),
            std::min<size_t>(best.size(), 8),
        best.data(), sizes.data(), sizes.size(), params);
    dict.resize(ZDICT_isError(n_dict) ? 0 : n_dict);
    encoder.reset(checked(ZSTD_createCDict(dict.data(), dict.size(), LEVEL)), ZSTD_freeCDict);
    decoder.reset(checked(ZSTD_createDDict(dict.data(), dict.size())), ZSTD_freeDDict);
}

void h2o_codec_code::predict(predictor p, uint8_t * plane, uint32_t n_rows) const {
    for (size_t i = (size_t) n_rows*width; p != predictor::RAW && i-- > width; ) {
        plane[i] = p == predictor::DELTA ? plane[i] - plane[i - width] : plane[i] ^ plane[i - width];
    }
}

void h2o_codec_code::unpredict(uint8_t * plane, uint32_t n_rows) const {
    for (uint32_t r = 1; chosen != predictor::RAW && r < n_rows; ++r, plane += width) {
        if (chosen == predictor::DELTA) {
            std::transform(plane, plane + width, plane + width, plane + width, std::plus<uint8_t>());
        } else {
            std::transform(plane, plane + width, plane + width, plane + width, std::bit_xor<uint8_t>());
        }
    }
}

// The plane and the rest are blocks of a frame: the rest is stored almost unchanged.
void h2o_codec_code::encode(const uint8_t * rows, uint32_t n, std::vector<uint8_t> & out) const {
    static thread_local std::vector<uint8_t> bytes;
    const size_t n_raw   = (size_t) n*row_bytes;
    const size_t n_plane = (size_t) n*width;
    bytes.resize(n_raw);
    layout_of(type).split(rows, n_raw/layout_of(type).block_bytes, bytes.data(), bytes.data() + n_plane);
    predict(chosen, bytes.data(), n);

    ZSTD_CCtx * zstd = compressor();
    ZSTD_CCtx_reset(zstd, ZSTD_reset_session_only);
    checked(ZSTD_CCtx_refCDict(zstd, encoder.get()));
    checked(ZSTD_CCtx_setPledgedSrcSize(zstd, n_raw));
    const size_t begin = out.size();
    out.resize(begin + ZSTD_compressBound(n_raw) + FRAME_BYTES);
    ZSTD_outBuffer to   = { out.data() + begin, out.size() - begin, 0 };
    ZSTD_inBuffer plane = { bytes.data(), n_plane, 0 };
    ZSTD_inBuffer rest  = { bytes.data() + n_plane, n_raw - n_plane, 0 };
    const size_t n_plane_left = checked(ZSTD_compressStream2(zstd, &to, &plane, ZSTD_e_flush));
    const size_t n_rest_left  = checked(ZSTD_compressStream2(zstd, &to, &rest, ZSTD_e_end));
    if (n_plane_left > 0 || n_rest_left > 0) {
        throw h2o_codec_error("zstd: no room");
    }
    out.resize(begin + to.pos);
}

void h2o_codec_code::decode(const uint8_t * frame, size_t n_bytes, uint32_t n, uint8_t * out) const {
    static thread_local std::vector<uint8_t> bytes;
    const size_t n_raw   = (size_t) n*row_bytes;
    const size_t n_plane = (size_t) n*width;
    bytes.resize(n_raw);
    if (checked(ZSTD_decompress_usingDDict(decompressor(), bytes.data(), n_raw, frame, n_bytes,
            decoder.get())) != n_raw) {
        throw h2o_codec_error("zstd: a frame of other rows");
    }
    unpredict(bytes.data(), n);
    layout_of(type).merge(bytes.data(), bytes.data() + n_plane, n_raw/layout_of(type).block_bytes, out);
}

h2o_codec_block h2o_codec_encode(const uint8_t * rows, uint32_t n_rows, std::shared_ptr<const h2o_codec_code> code,
        std::vector<uint8_t> & out) {
    h2o_codec_block res = { std::move(code), n_rows, {} };
    for (uint32_t r = 0; r < n_rows; r += res.code->unit_rows) {
        res.code->encode(rows + (size_t) r*res.code->row_bytes, std::min(res.code->unit_rows, n_rows - r), out);
        res.ends.push_back(out.size());
    }
    return res;
}

void h2o_codec_block::decode(uint32_t first, uint32_t n, uint8_t * out, const reader & read) const {
    static thread_local std::vector<uint8_t> rows; // of a unit
    const size_t row_bytes = code->row_bytes;
    for (uint32_t r = first, end; r < first + n; r = end) {
        const uint32_t unit   = r/code->unit_rows;
        const uint32_t start  = unit*code->unit_rows;
        const uint32_t n_unit = std::min(code->unit_rows, n_rows - start);
        const uint32_t begin  = unit > 0 ? ends[unit - 1] : 0;
        end = std::min(start + n_unit, first + n);

        rows.resize(n_unit*row_bytes);
        code->decode(read(begin, ends[unit]), ends[unit] - begin, n_unit, rows.data());
        out = std::copy_n(rows.data() + (r - start)*row_bytes, (end - r)*row_bytes, out);
    }
}
