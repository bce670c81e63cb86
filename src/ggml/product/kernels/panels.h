#pragma once

// Products with many columns, which are packed into panels. P describes panels and groups:
//
//   PANEL_BLOCK, ROWS_BLOCK  bytes of a block of a panel, and of a group
//   AT_ONCE, AT_END          panels that are multiplied at once, as many as there are registers for. A lone last panel
//                            would stall the pipeline: the last panels are taken together, up to AT_END
//   SPREADS                  whether a column may take several lanes
//   add<N, SPREAD>(...)      adds a group of rows by N panels to the sums. Each column takes SPREAD lanes, so a vector
//                            has the sums of SPREAD rows

#include "ggml/product/kernels/steps.h"

namespace {

// Stores the sums of 4 rows by one panel.
template <int SPREAD>
void put(vec_f (& sums)[ROWS/SPREAD], float * const * dst, int64_t row, int64_t n_rows, int64_t n_columns) {
    if constexpr (SPREAD == 1) {
        transpose<ROWS>(sums); // column i + ROWS*j is in lanes ROWS*j to ROWS*j + ROWS - 1 of sums[i]
    }
    for (int64_t i = 0; i < n_columns; ++i) {
        float x[ROWS];
        if constexpr (SPREAD == 1) {
            __builtin_memcpy(x, (const float *) &sums[i%ROWS] + i/ROWS*ROWS, sizeof(x));
        } else {
            for (int r = 0; r < ROWS/SPREAD; ++r) {
                __builtin_memcpy(x + r*SPREAD, (const float *) &sums[r] + i*SPREAD, SPREAD*sizeof(float));
            }
        }
        if (n_rows == ROWS) {
            __builtin_memcpy(dst[i] + row, x, sizeof(x)); // one instruction
        } else {
            __builtin_memcpy(dst[i] + row, x, n_rows*sizeof(float));
        }
    }
}

template <typename P, int N, int SPREAD>
void multiply_panels(const h2o_product_slice & s, int64_t first) {
    const char  * panels   = s.panels + first*s.panel_stride;
    const int64_t n_groups = (s.n_rows + ROWS - 1)/ROWS;

    for (int64_t g = 0; g < n_groups; ++g) {
        const auto kept = [&](int p, int r) { return s.sums + (((first + p)*n_groups + g)*ROWS + r)*VL; };

        vec_f sums[N][ROWS/SPREAD];
        for (int p = 0; p < N; ++p) {
#pragma GCC unroll 4 // or sums are not in registers
            for (int r = 0; r < ROWS/SPREAD; ++r) {
                sums[p][r] = s.is_first ? vec_f {} : load(kept(p, r));
            }
        }

        P::template add<N, SPREAD>(s.rows + g*s.n_blocks*P::ROWS_BLOCK, panels, s.panel_stride, s.n_blocks, sums);

        for (int p = 0; p < N; ++p) {
            if (s.is_last) {
                const int64_t column = (first + p)*VL;
                put<SPREAD>(sums[p], s.dst + column, s.row + g*ROWS, min_of(ROWS, s.n_rows - g*ROWS),
                    min_of(VL/SPREAD, s.n_columns - column));
            } else {
#pragma GCC unroll 4
                for (int r = 0; r < ROWS/SPREAD; ++r) {
                    store(kept(p, r), sums[p][r]);
                }
            }
        }
    }
}

template <typename P>
void multiply(const h2o_product_slice & s) {
    if constexpr (P::SPREADS) {
        if (s.spread == 2) {
            return multiply_panels<P, 1, 2>(s, 0);
        }
    }

    const int64_t n_panels = (s.n_columns + VL - 1)/VL;

    int64_t first = 0;
    for (; n_panels - first >= P::AT_ONCE && n_panels - first != P::AT_END; first += P::AT_ONCE) {
        multiply_panels<P, P::AT_ONCE, 1>(s, first);
    }
    if (first < n_panels) {
        with_constant<P::AT_END>((int) (n_panels - first), [&](auto n) {
            multiply_panels<P, decltype(n)::value, 1>(s, first);
        });
    }
}

} // namespace
