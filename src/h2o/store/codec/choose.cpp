#include "h2o/store/codec/choose.h"

#include "h2o/store/codec/entropy.h"
#include "h2o/store/codec/predict.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr size_t SAMPLE_BYTES = 8192;
constexpr size_t PROBE_BYTES  = 4096;

// What a predictor must save of a plane to be worth the time that it takes.
constexpr float MIN_GAIN = 0.01f;

using histogram = std::array<uint32_t, 256>;

// n·log2(n) of the counts that a sample can have
const float * n_log2_n() {
    static const std::vector<float> table = [] {
        std::vector<float> res(SAMPLE_BYTES + 1);
        for (size_t i = 1; i < res.size(); ++i) {
            res[i] = i*std::log2((float) i);
        }
        return res;
    }();
    return table.data();
}

// Bits for `scale` times these bytes: their entropy, corrected for how few they are (Miller 1955), and zstd's table of the code, about
// 10 bytes and half a byte for each value.
float cost(const histogram & counts, float scale) {
    const float * f = n_log2_n();
    uint32_t n = 0, n_values = 0;
    float    sum = 0;
    for (const uint32_t count : counts) {
        n        += count;
        n_values += count > 0;
        sum      += f[count];
    }
    if (n == 0) {
        return 0;
    }
    return scale*(f[n] - sum + 0.72f*(n_values - 1)) + 8*(10 + 0.5f*n_values);
}

// Some rows that follow each other, after the one before them, or zeros. Of rows longer than a sample, the beginning.
struct sample {
    std::vector<uint8_t> bytes; // [1 + n_rows][width]
    uint32_t n_rows;
    uint32_t width;
    float    scale; // bytes of the plane for each of the rows' here

    sample(const uint8_t * plane, uint32_t n_rows_all, uint32_t width_all) {
        width  = std::min<size_t>(width_all, SAMPLE_BYTES);
        n_rows = std::min<size_t>(n_rows_all, SAMPLE_BYTES/width);
        scale  = (float) n_rows_all/n_rows*width_all/width;
        bytes.resize((n_rows + 1)*(size_t) width);

        const uint32_t first = (n_rows_all - n_rows + 1)/2;
        for (uint32_t r = first > 0 ? 0 : 1; r <= n_rows; ++r) {
            std::memcpy(&bytes[r*(size_t) width], plane + (size_t) (first + r - 1)*width_all, width);
        }
    }

    const uint8_t * row(uint32_t r) const { return bytes.data() + (r + 1)*(size_t) width; }
    size_t size() const { return (size_t) n_rows*width; }
};

// By contexts of about equal size, 16 of them, or fewer where many bytes have the same magnitude; then of two neighbours made one, and
// so on.
float cost_of_contexts(const sample & s, h2o_codec_thresholds & best) {
    std::array<uint32_t, 128> magnitudes{};
    for (size_t i = 0; i < s.size(); ++i) {
        magnitudes[s.row(0)[i] & 0x7f]++;
    }
    h2o_codec_thresholds all;
    size_t n_less = 0, n_reached = 0;
    for (uint32_t m = 0; m < 128; ++m) {
        const size_t n = n_less*H2O_CODEC_MAX_CONTEXTS/s.size();
        if (n > n_reached && n < H2O_CODEC_MAX_CONTEXTS) {
            all.at[all.n++] = m;
            n_reached = n;
        }
        n_less += magnitudes[m];
    }

    std::vector<histogram> counts(all.n + 1);
    std::vector<uint8_t>   contexts(s.width);
    for (uint32_t r = 0; r < s.n_rows; ++r) {
        const uint8_t * row    = s.row(r);
        const uint8_t * before = row - s.width;
        h2o_codec_contexts_of(before, s.width, all, contexts.data());
        for (uint32_t i = 0; i < s.width; ++i) {
            counts[contexts[i]][row[i] ^ (before[i] & 0x80)]++;
        }
    }

    float res = INFINITY;
    while (true) {
        float bits = 0;
        for (const histogram & c : counts) {
            bits += cost(c, s.scale) + 8*9; // a stream's header
        }
        if (bits < res) {
            res  = bits;
            best = all;
        }
        if (all.n == 0) {
            return res;
        }
        for (size_t g = 0; g + 1 < counts.size(); g += 2) {
            for (int i = 0; i < 256; ++i) {
                counts[g][i] += counts[g + 1][i];
            }
            counts[g/2] = counts[g];
        }
        if (counts.size() % 2) {
            counts[counts.size()/2] = counts.back();
        }
        counts.resize((counts.size() + 1)/2);
        for (uint32_t k = 1; k < all.n; k += 2) {
            all.at[k/2] = all.at[k];
        }
        all.n /= 2;
    }
}

// After a predictor that leaves a byte for every byte.
float cost_of(const sample & s, h2o_codec_choice & choice) {
    sample left = s;
    h2o_codec_predict(choice.predictor, left.bytes.data(), left.n_rows + 1, left.width);

    histogram counts{};
    for (size_t i = 0; i < left.size(); ++i) {
        counts[left.row(0)[i]]++;
    }
    const float bits = cost(counts, s.scale);

    // Where LZ4, without an entropy code, comes near to that, LZ77 with one saves more. Few values alone make short matches. A Huffman
    // code alone has no less than a bit for a byte.
    const size_t n_probe = std::min<size_t>(left.size(), PROBE_BYTES);
    const size_t n_lz4   = h2o_codec_probe(left.row(0), n_probe);
    const float  bits_lz = 8*s.scale*left.size()*n_lz4/n_probe;
    choice.may_repeat    = n_lz4 < n_probe - n_probe/50 && bits_lz < 3*std::max(bits, s.scale*left.size());
    return choice.may_repeat ? std::min(bits, bits_lz) : bits;
}

} // namespace

h2o_codec_choice h2o_codec_choose(h2o_codec_predictor predictor, const uint8_t * plane, uint32_t n_rows, uint32_t width) {
    const sample s(plane, n_rows, width);

    h2o_codec_choice res;
    float best = 8.0f*n_rows*width*(1 - MIN_GAIN);
    res.is_raw = true;
    for (int p = 0; p < H2O_CODEC_PREDICTOR_COUNT; ++p) {
        if (predictor != H2O_CODEC_PREDICTOR_AUTO && predictor != p) {
            continue;
        }
        h2o_codec_choice choice;
        choice.predictor = (h2o_codec_predictor) p;
        const float bits = p == H2O_CODEC_PREDICTOR_CONTEXT ? cost_of_contexts(s, choice.thresholds) : cost_of(s, choice);
        const float gain = p == H2O_CODEC_PREDICTOR_RAW ? 0 : 8.0f*n_rows*width*MIN_GAIN;
        if (predictor != H2O_CODEC_PREDICTOR_AUTO || bits + gain < best) {
            best = bits;
            res  = choice;
        }
    }
    return res;
}
