#include "h2o/store/codec/context.h"

#include <cstring>

// Chosen when the library is loaded. glibc can do that.
#if defined(__x86_64__) && defined(__GLIBC__)
__attribute__((target_clones("avx2", "default")))
#endif
void h2o_codec_contexts_of(const uint8_t * before, uint32_t width, const h2o_codec_thresholds & thresholds, uint8_t * contexts) {
    typedef uint8_t vector __attribute__((vector_size(32)));

    uint32_t i = 0;
    for (; i + sizeof(vector) <= width; i += sizeof(vector)) {
        vector magnitudes, counts = {};
        std::memcpy(&magnitudes, before + i, sizeof(vector));
        magnitudes &= 0x7f;
        for (uint32_t k = 0; k < thresholds.n; ++k) {
            counts -= (vector) (magnitudes >= thresholds.at[k]); // true is -1
        }
        std::memcpy(contexts + i, &counts, sizeof(vector));
    }
    for (; i < width; ++i) {
        contexts[i] = 0;
        for (uint32_t k = 0; k < thresholds.n; ++k) {
            contexts[i] += (before[i] & 0x7f) >= thresholds.at[k];
        }
    }
}

// Each stream has its ends: where the next byte of a left half belongs, and past where the next one of a right half does.
template <typename T>
struct ends {
    std::array<T *, H2O_CODEC_MAX_CONTEXTS> left, right;

    ends(T * streams, const std::array<size_t, H2O_CODEC_MAX_CONTEXTS> & sizes) {
        for (uint32_t g = 0; g < H2O_CODEC_MAX_CONTEXTS; ++g) {
            left[g] = streams;
            streams += sizes[g];
            right[g] = streams;
        }
    }
};

void h2o_codec_to_contexts(const uint8_t * plane, uint32_t n_rows, uint32_t width, const h2o_codec_thresholds & thresholds,
        uint8_t * streams, std::array<size_t, H2O_CODEC_MAX_CONTEXTS> & sizes) {
    std::vector<uint8_t> zeros(width), contexts((size_t) n_rows*width), symbols(width);

    sizes = {};
    for (uint32_t r = 0; r < n_rows; ++r) {
        h2o_codec_contexts_of(r ? plane + (size_t) (r - 1)*width : zeros.data(), width, thresholds, &contexts[(size_t) r*width]);
    }
    for (size_t i = 0; i < contexts.size(); ++i) {
        sizes[contexts[i]]++;
    }

    ends<uint8_t> at(streams, sizes);
    const uint8_t * before  = zeros.data();
    const uint8_t * context = contexts.data();
    const uint32_t  half    = width/2;
    for (uint32_t r = 0; r < n_rows; ++r, plane += width, context += width) {
        for (uint32_t i = 0; i < width; ++i) {
            symbols[i] = plane[i] ^ (before[i] & 0x80);
        }
        for (uint32_t i = 0; i < half; ++i) {
            *at.left[context[i]]++          = symbols[i];
            *--at.right[context[half + i]] = symbols[half + i];
        }
        for (uint32_t i = 2*half; i < width; ++i) {
            *--at.right[context[i]] = symbols[i];
        }
        before = plane;
    }
}

void h2o_codec_from_contexts(const uint8_t * streams, const std::array<size_t, H2O_CODEC_MAX_CONTEXTS> & sizes,
        const h2o_codec_thresholds & thresholds, uint8_t * plane, uint32_t n_rows, uint32_t width) {
    std::vector<uint8_t> zeros(width), contexts(width);

    // Ends are compared after each row: by then they have gone too far by no more than a row.
    ends<const uint8_t> at(streams, sizes);
    const uint8_t * before = zeros.data();
    const uint32_t  half   = width/2;
    for (uint32_t r = 0; r < n_rows; ++r, plane += width) {
        h2o_codec_contexts_of(before, width, thresholds, contexts.data());
        for (uint32_t i = 0; i < half; ++i) {
            plane[i]        = *at.left[contexts[i]]++;
            plane[half + i] = *--at.right[contexts[half + i]];
        }
        for (uint32_t i = 2*half; i < width; ++i) {
            plane[i] = *--at.right[contexts[i]];
        }
        for (uint32_t i = 0; i < width; ++i) {
            plane[i] ^= before[i] & 0x80;
        }
        for (uint32_t g = 0; g <= thresholds.n; ++g) {
            if (at.left[g] > at.right[g]) {
                throw h2o_codec_error("[codec] the frame is damaged: a context has fewer bytes than belong to it");
            }
        }
        before = plane;
    }
}
