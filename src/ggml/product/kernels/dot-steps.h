// Steps by VNNI, which adds up the products of 4 bytes in each lane, of unsigned numbers by signed ones.

namespace {

template <typename K>
constexpr int N_STEPS = 8;

template <typename K>
constexpr bool FIRST = K::ZERO != 0;

template <typename K>
constexpr int MAX_DIRECT = 5;

template <typename K>
using steps_of = number_kind<8, K::ZERO != 0, K::SCALES, K::MINS>;

inline vec_i multiply_add(vec_i sum, vec_i w, vec_i x) {
#if VL == 16
    return (vec_i) _mm512_dpbusd_epi32((__m512i) sum, (__m512i) w, (__m512i) x);
#else
    return (vec_i) _mm256_dpbusd_avx_epi32((__m256i) sum, (__m256i) w, (__m256i) x);
#endif
}

inline vec_i add_bytes(vec_i sum, vec_i x) {
    return multiply_add(sum, vec_i {} + 0x01010101, x);
}

template <typename K>
inline void widen_columns(const vec_f * x, char * block) {
    for (int j = 0; j < 8; ++j) {
        store((float *) (block + j*VL*4), x[j]);
    }
}

template <typename K>
inline void widen_rows(const bytes<1> * w, char * dst) {
    interleave(w, dst);
}

template <typename K, int N, int SPREAD, int H>
inline void add_products(const char * rows, const char * panels, int64_t panel_stride, vec_i (& sum)[N][ROWS/SPREAD]) {
#pragma GCC unroll 1 // or GCC adds the products of several steps first, and runs out of registers
    for (int j = H*8/K::SCALES; j < (H + 1)*8/K::SCALES; ++j) {
        for_step<N, SPREAD>(rows, panels, panel_stride, j, [&](int p, int r, vec_i w, vec_i x) {
            sum[p][r] = multiply_add(sum[p][r], w, x);
        });
    }
}

template <typename K>
inline vec_i dot(vec_i first, vec_i w, vec_i x) {
    return multiply_add(first, w, x);
}

} // namespace
