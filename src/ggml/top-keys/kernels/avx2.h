#include "ggml/simd/half.h"
#include "ggml/top-keys/kernels/kernel.h"

#include <immintrin.h>

namespace {

// Partial sums have 16 bits: 16*15*127 fits.
inline vec_i add_products(vec_i sum, vec_i keys, vec_i q) {
    return (vec_i) _mm256_add_epi16((__m256i) sum, _mm256_maddubs_epi16((__m256i) keys, (__m256i) q));
}

inline vec_i sums_of(vec_i a, vec_i b) {
    return (vec_i) _mm256_madd_epi16(_mm256_add_epi16((__m256i) a, (__m256i) b), _mm256_set1_epi16(1));
}

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
