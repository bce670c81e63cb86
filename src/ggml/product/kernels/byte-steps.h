// Steps by an instruction that adds up the products of 4 bytes in each lane: multiply_add(sum, w, x), defined before this is included.

namespace {

template <typename K>
constexpr int N_STEPS = 8;

inline vec_i add_bytes(vec_i sum, vec_i x) {
    return multiply_add(sum, vec_i {} + 0x01010101, x);
}

template <typename K>
inline void widen_columns(const vec_f * x, char * block) {
    for (int j = 0; j < 8; ++j) {
        store((float *) (block + j*VL*4), x[j]);
    }
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

} // namespace
