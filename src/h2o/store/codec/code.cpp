#include "h2o/store/codec/code.h"

#include "h2o/store/codec/prefetch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

// A unit: u32 the lower half of the XXH64 of what follows; u16 lengths of the coded planes but the last; the planes, one after another. Where
// that is not shorter than the rows, the rows as they were.

namespace {

constexpr size_t SAMPLE_BYTES = 16*1024; // of a plane, by which its predictor is chosen
constexpr size_t MAX_COUNTED  = 1024;    // rows of which a code for others is made

// What a predictor, and a Huffman code, must save of a plane to be worth the time that they take.
constexpr double MIN_GAIN = 0.01;

// What a unit takes of a plane beside its bits, at most: the length, zstd's lengths of four streams, and that each ends with a byte.
constexpr size_t UNIT_COST = 2 + 6 + 4*2;

// What a byte that came weighs in a code for others, where one that never came weighs 1.
constexpr uint32_t COUNTED = 8;

// zstd adds up to so many counts.
constexpr size_t MAX_COUNTS = size_t(1) << 29;
static_assert(COUNTED*MAX_COUNTED*H2O_CODEC_MAX_UNIT + 256 <= MAX_COUNTS, "counts");

using histogram = std::array<uint32_t, 256>;

histogram count(const std::vector<uint8_t> & bytes) {
    histogram res{};
    for (const uint8_t byte : bytes) {
        res[byte]++;
    }
    return res;
}

double entropy_bits(const histogram & counts) {
    double n = 0, sum = 0;
    for (const uint32_t c : counts) {
        n   += c;
        sum += c > 0 ? c*std::log2(c) : 0;
    }
    return n > 0 ? n*std::log2(n) - sum : 0;
}

// unit by unit, as predictors do not look beyond
void predict_units(h2o_codec_predictor predictor, std::vector<uint8_t> & plane, uint32_t unit_rows, uint32_t width) {
    const size_t n_rows = plane.size()/width;
    for (size_t r = 0; r < n_rows; r += unit_rows) {
        h2o_codec_predict(predictor, plane.data() + r*width, std::min<size_t>(unit_rows, n_rows - r), width);
    }
}

h2o_codec_predictor best_predictor(const std::vector<uint8_t> & plane, uint32_t unit_rows, uint32_t width) {
    double best = INFINITY;
    h2o_codec_predictor res = H2O_CODEC_PREDICTOR_RAW;
    for (int p = 0; p < H2O_CODEC_PREDICTOR_COUNT; ++p) {
        std::vector<uint8_t> left = plane;
        predict_units((h2o_codec_predictor) p, left, unit_rows, width);
        const double bits = entropy_bits(count(left));
        if (bits + (p == H2O_CODEC_PREDICTOR_RAW ? 0 : MIN_GAIN*8*plane.size()) < best) {
            best = bits;
            res  = (h2o_codec_predictor) p;
        }
    }
    return res;
}

uint32_t unit_rows_of(uint32_t row_bytes, uint32_t wanted) {
    const uint32_t most = std::max<uint32_t>(1, H2O_CODEC_MAX_UNIT/std::max<uint32_t>(row_bytes, 1));
    return wanted == 0 ? most : std::min(wanted, most);
}

uint32_t checksum_of(const uint8_t * bytes, size_t n) {
    return (uint32_t) h2o_xxh64(bytes, n, n);
}

[[noreturn]] void fail(const char * what) {
    throw h2o_codec_error(std::string("[codec] damaged: ") + what);
}

// Numbers have their lowest byte first.
struct reader {
    const uint8_t * data;
    size_t          n;

    const uint8_t * take(size_t n_bytes) {
        if (n_bytes > n) {
            fail("it ends too early");
        }
        data += n_bytes;
        n    -= n_bytes;
        return data - n_bytes;
    }

    template <typename T>
    T number() {
        const uint8_t * bytes = take(sizeof(T));
        T res = 0;
        for (size_t i = 0; i < sizeof(T); ++i) {
            res |= (T) ((T) bytes[i] << 8*i);
        }
        return res;
    }
};

} // namespace

h2o_codec_code::h2o_codec_code(const uint8_t * rows, const h2o_codec_shape & shape, const h2o_codec_options & options)
    : type(shape.type), row_bytes(shape.row_bytes), unit_rows(unit_rows_of(shape.row_bytes, options.unit_rows)) {
    const uint32_t n_rows      = options.for_others ? std::min<uint32_t>(shape.n_rows, MAX_COUNTED) : shape.n_rows;
    const uint32_t block_bytes = h2o_codec_block_bytes(type);

    std::vector<uint8_t> split((size_t) n_rows*row_bytes);
    h2o_codec_split(type, rows, split.size()/block_bytes, split.data());
    auto from = split.begin();
    for (const h2o_codec_plane & p : h2o_codec_planes_of(type)) {
        planes.emplace_back();
        planes.back().width = p.width(row_bytes, block_bytes);

        const auto end = from + (size_t) n_rows*planes.back().width;
        choose(planes.back(), { from, end }, n_rows, options);
        from = end;
    }
}

void h2o_codec_code::choose(plane & p, std::vector<uint8_t> bytes, uint32_t n_rows, const h2o_codec_options & options) {
    if (bytes.empty() || bytes.size() > MAX_COUNTS || row_bytes > H2O_CODEC_MAX_UNIT) {
        return;
    }
    h2o_codec_predictor predictor = options.predictor;
    if (predictor == H2O_CODEC_PREDICTOR_AUTO) {
        const size_t n     = std::min<size_t>(n_rows, std::max<size_t>(1, SAMPLE_BYTES/p.width));
        const auto   begin = bytes.begin() + (n_rows - n)/2*p.width;
        predictor = best_predictor({ begin, begin + n*p.width }, unit_rows, p.width);
    }
    predict_units(predictor, bytes, unit_rows, p.width);
    const histogram counts = count(bytes);
    histogram words = counts;
    if (options.for_others) {
        for (uint32_t & n : words) {
            n = COUNTED*n + 1;
        }
    }
    if (std::count(words.begin(), words.end(), 0u) == 255) {
        words[words[0] > 0]++; // a word has one bit at least
    }
    auto encoder = std::make_unique<h2o_huffman_encoder>();
    std::vector<uint8_t> weights(H2O_HUFFMAN_MAX_WEIGHTS);
    weights.resize(h2o_huffman_make(words.data(), encoder.get(), weights.data()));

    const size_t n_units   = (n_rows + unit_rows - 1)/unit_rows;
    const size_t n_encoded = h2o_huffman_size(encoder.get(), counts.data()) + n_units*UNIT_COST + (options.for_others ? 0 : weights.size());
    if (!weights.empty() && n_encoded < (1 - MIN_GAIN)*bytes.size()) {
        p.predictor = predictor;
        p.weights   = std::move(weights);
        p.encoder   = std::move(encoder);
        add_decoder(p);
    }
}

void h2o_codec_code::add_decoder(plane & p) {
    n_coded++;
    p.decoder = std::make_unique<h2o_huffman_decoder>();
    if (!h2o_huffman_read(p.weights.data(), p.weights.size(), p.decoder.get())) {
        fail("a Huffman code that is none");
    }
}

// Of each plane: u8 predictor, u8 bytes that say the Huffman code, and these.
std::vector<uint8_t> h2o_codec_code::write() const {
    std::vector<uint8_t> res;
    for (const plane & p : planes) {
        res.push_back(p.predictor);
        res.push_back((uint8_t) p.weights.size());
        res.insert(res.end(), p.weights.begin(), p.weights.end());
    }
    return res;
}

h2o_codec_code::h2o_codec_code(h2o_codec_type type, uint32_t row_bytes, uint32_t unit_rows, const uint8_t * data, size_t n)
    : type(type), row_bytes(row_bytes), unit_rows(unit_rows) {
    if (unit_rows == 0 || unit_rows != unit_rows_of(row_bytes, unit_rows)) {
        fail("units of no rows, or of too many");
    }
    reader in = { data, n };
    for (const h2o_codec_plane & p : h2o_codec_planes_of(type)) {
        planes.emplace_back();
        planes.back().width     = p.width(row_bytes, h2o_codec_block_bytes(type));
        planes.back().predictor = (h2o_codec_predictor) in.number<uint8_t>();
        const uint8_t   n_bytes = in.number<uint8_t>();
        const uint8_t * weights = in.take(n_bytes);
        if (planes.back().predictor >= H2O_CODEC_PREDICTOR_COUNT) {
            fail("no such predictor");
        }
        if (n_bytes > 0 && row_bytes <= H2O_CODEC_MAX_UNIT) {
            planes.back().weights.assign(weights, weights + n_bytes);
            add_decoder(planes.back());
        }
    }
    if (in.n > 0) {
        fail("more than all planes");
    }
}

void h2o_codec_code::encode(const uint8_t * rows, uint32_t n, std::vector<uint8_t> & out) const {
    const size_t begin = out.size();
    const size_t n_raw = (size_t) n*row_bytes;

    out.resize(begin + H2O_CODEC_CHECKSUM_BYTES + 2*n_coded + n_raw);
    uint8_t * const bytes  = out.data() + begin + H2O_CODEC_CHECKSUM_BYTES;
    uint8_t *       to     = bytes + 2*(std::max(n_coded, 1u) - 1);
    uint8_t * const planes_begin = to;
    if (n_coded > 0) {
        static thread_local std::vector<uint8_t> split; // kept: making room takes a part of the time of a row
        split.resize(n_raw);
        h2o_codec_split(type, rows, n_raw/h2o_codec_block_bytes(type), split.data());

        uint8_t * from   = split.data();
        uint8_t * length = bytes;
        for (const plane & p : planes) {
            const size_t n_plane = (size_t) n*p.width;
            size_t n_encoded = 0;
            if (p.encoder) {
                h2o_codec_predict(p.predictor, from, n, p.width);
                n_encoded = h2o_huffman_encode(p.encoder.get(), from, n_plane, to);
            }
            if (n_encoded == 0) {
                n_encoded = n_plane;
                std::memcpy(to, from, n_plane);
            }
            if (p.encoder && length < planes_begin) {
                *length++ = n_encoded & 0xff;
                *length++ = n_encoded >> 8;
            }
            from += n_plane;
            to   += n_encoded;
        }
    }
    size_t n_bytes = to - bytes;
    if (n_coded == 0 || n_bytes >= n_raw) {
        n_bytes = n_raw;
        std::copy_n(rows, n_raw, bytes);
    }
    const uint32_t checksum = checksum_of(bytes, n_bytes);
    for (size_t i = 0; i < H2O_CODEC_CHECKSUM_BYTES; ++i) {
        out[begin + i] = checksum >> 8*i;
    }
    out.resize(begin + H2O_CODEC_CHECKSUM_BYTES + n_bytes);
}

void h2o_codec_code::decode(const uint8_t * unit, size_t n_bytes, uint32_t n, uint8_t * out) const {
    const size_t n_raw = (size_t) n*row_bytes;

    reader in = { unit, n_bytes };
    const uint32_t checksum = in.number<uint32_t>();
    if (checksum != checksum_of(in.data, in.n)) {
        fail("a checksum is wrong");
    }
    if (in.n == n_raw) {
        std::copy_n(in.data, n_raw, out);
        return;
    }
    const size_t n_lengths = std::max(n_coded, 1u) - 1;
    reader lengths = { in.take(2*n_lengths), 2*n_lengths };

    static thread_local std::vector<uint8_t> decoded;
    decoded.resize(n_raw);
    uint8_t * to     = decoded.data();
    size_t    n_left = n_raw; // of the planes that follow
    std::array<const uint8_t *, H2O_CODEC_MAX_PLANES> bytes{};
    for (size_t i = 0; i < planes.size(); ++i) {
        const plane & p      = planes[i];
        const size_t n_plane = (size_t) n*p.width;
        n_left -= n_plane;
        if (!p.decoder) {
            bytes[i] = in.take(n_plane);
            continue;
        }
        const size_t n_encoded = lengths.n > 0 ? lengths.number<uint16_t>() : in.n - std::min(in.n, n_left);
        bytes[i] = in.take(n_encoded);
        if (n_encoded == n_plane) {
            std::copy_n(bytes[i], n_plane, to);
        } else if (!h2o_huffman_decode(p.decoder.get(), bytes[i], n_encoded, to, n_plane)) {
            fail("a plane does not give the bytes that it should");
        }
        h2o_codec_unpredict(p.predictor, to, n, p.width);
        bytes[i] = to;
        to += n_plane;
    }
    if (in.n > 0) {
        fail("it does not end where it should");
    }
    h2o_codec_merge(type, bytes.data(), n_raw/h2o_codec_block_bytes(type), out);
}

void h2o_codec_code::prefetch() const {
    for (const plane & p : planes) {
        if (p.decoder) {
            h2o_codec_prefetch(p.decoder.get(), sizeof(*p.decoder));
        }
    }
}

size_t h2o_codec_code::n_bytes() const {
    return n_coded*(sizeof(h2o_huffman_encoder) + sizeof(h2o_huffman_decoder));
}
