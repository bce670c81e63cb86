#pragma once

// How a block's numbers are multiplied in panels, step by step, for each kind of numbers. The file of an instruction
// set has
//
//   N_STEPS                             steps, each with 4 bytes of every lane
//   MAX_DIRECT                          most columns for which rows are read in place
//   FIRST                               whether sums start with the sum of the column's numbers times -ZERO
//   steps_of                            the kind with the same steps, so that they are compiled once
//   add_bytes(sum, x)                   adds the 4 signed bytes of each lane
//   widen_columns<K>(x, block)          from a block's numbers, dword i of every column in x[i], to a panel's block
//   widen_rows<K>(w, dst)               from the numbers of 4 rows to N_STEPS*4 bytes of each
//   add_products<K, N, SPREAD, H>(...)  adds half H of a block, or all of it if it has one scale
//   dot<K>(first, w, x)                 sums of 4 products in each lane, of a row's numbers and a column's

#include "ggml/product/kernels/types.h"

namespace {

typedef int64_t vec_l __attribute__((vector_size(VL*4)));

// N dwords in every N lanes
template <int N>
inline vec_i repeat(const char * src) {
    static_assert(N == 1 || N == 2, "");
    if constexpr (N == 2) {
        int64_t x;
        __builtin_memcpy(&x, src, sizeof(x));
        return (vec_i) (x - vec_l {});
    } else {
        int32_t x;
        __builtin_memcpy(&x, src, sizeof(x));
        return x - vec_i {};
    }
}

// Rows of 4 bytes of each lane by N panels.
template <int N, int SPREAD, typename F>
inline void for_step(const char * rows, const char * panels, int64_t panel_stride, int step, const F & add) {
    vec_i x[N];
    for (int p = 0; p < N; ++p) {
        x[p] = *(const vec_i_mem *) (panels + p*panel_stride + step*VL*4);
    }
    for (int r = 0; r < ROWS/SPREAD; ++r) {
        const vec_i w = repeat<SPREAD>(rows + (step*ROWS + r*SPREAD)*4);
        for (int p = 0; p < N; ++p) {
            add(p, r, w, x[p]);
        }
    }
}

} // namespace

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include "ggml/product/kernels/dot-steps.h"
#else
#include "ggml/product/kernels/avx2-steps.h"
#endif
