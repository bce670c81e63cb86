#include "ggml/simd/half.h"
#include "ggml/top-keys/kernels/kernel.h"

#include <immintrin.h>

namespace {

struct key_block {
    __m256i low [4]; // numbers 4*j to 4*j + 3 of each key
    __m256i high[4]; // 16 more

    explicit key_block(const char * src) {
        const __m256i mask = _mm256_set1_epi8(15);
        for (int j = 0; j < 4; ++j) {
            const __m256i bytes = _mm256_loadu_si256((const __m256i *) (src + j*VL*4));
            low [j] = _mm256_and_si256(bytes, mask);
            high[j] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
        }
    }

    // Products are summed in 16 bits first, 16 of them: 16*15*127 fits.
    vec_i dot(const h2o_index_query & q) const {
        __m256i sum = _mm256_setzero_si256();
        for (int j = 0; j < 4; ++j) {
            int32_t a;
            int32_t b;
            __builtin_memcpy(&a, q.x + 4*j, sizeof(a));
            __builtin_memcpy(&b, q.x + 4*j + 16, sizeof(b));
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(low [j], _mm256_set1_epi32(a)));
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(high[j], _mm256_set1_epi32(b)));
        }
        return (vec_i) _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) + q.offset;
    }
};

inline vec_f load_rows(const char * const * src, int64_t offset) {
    const auto row = [&](int i) { return _mm_loadu_si128((const __m128i *) (src[i] + offset)); };

    return (vec_f) _mm256_set_m128i(row(4), row(0));
}

inline unsigned lanes_at_least(vec_f x, float t) {
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256) x, _mm256_set1_ps(t), _CMP_GE_OQ));
}

// for each set of lanes their numbers, a byte each
struct lane_table {
    uint64_t lanes[256];
};

constexpr lane_table make_lane_table() {
    lane_table table = {};
    for (unsigned set = 0; set < 256; ++set) {
        for (int lane = 0, n = 0; lane < VL; ++lane) {
            if (set >> lane & 1) {
                table.lanes[set] |= (uint64_t) lane << 8*n++;
            }
        }
    }
    return table;
}

constexpr lane_table LANES = make_lane_table();

inline vec_f compress(vec_f x, unsigned lanes) {
    return (vec_f) _mm256_permutevar8x32_ps((__m256) x,
            _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long) LANES.lanes[lanes])));
}

} // namespace

#include "ggml/top-keys/kernels/simd.h"
