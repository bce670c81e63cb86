#include "ggml/low-rank/kernels/compute.h"

#include "ggml/low-rank/kernels/kernel.h"
#include "ggml/simd/isa.h"
#include "h2o-kernels.h"

#include <algorithm>
#include <cstring>

#define DECLARE(isa, kernel) extern const h2o_low_rank_kernel kernel;
H2O_LOW_RANK_KERNELS(DECLARE)

#define ENTRY(isa, kernel) { h2o_isa::isa, &kernel },

namespace {

constexpr int64_t ROWS = H2O_LOW_RANK_ROWS;

// n rows of B from `first` on, times a scale, and zeros: [rank][ROWS]
void transpose(const ggml_tensor * b, int64_t first, int64_t n, float scale, float * tile) {
    const int64_t rank     = b->ne[0];
    const auto    to_float = ggml_get_type_traits(b->type)->to_float;

    for (int64_t i = 0; i < ROWS; ++i) {
        float row[H2O_LOW_RANK_MAX] = {};
        const char * src = (const char *) b->data + (first + i)*b->nb[1];
        if (i < n && to_float) {
            to_float(src, row, rank);
        } else if (i < n) {
            memcpy(row, src, rank*sizeof(float));
        }
        for (int64_t r = 0; r < rank; ++r) {
            tile[r*ROWS + i] = row[r]*scale;
        }
    }
}

} // namespace

// A thread takes a run of tokens; B is in the cache, and every thread transposes it.
void ggml_h2o_compute_low_rank(
        ggml_tensor * dst, const ggml_tensor *, const ggml_tensor * b, const ggml_tensor * y,
        int ith, int nth, void * data) {
    float scale;
    memcpy(&scale, &data, sizeof(scale));

    const int64_t n_out = dst->ne[0];
    const int64_t rank  = b->ne[0];
    const int64_t start = dst->ne[1]*ith/nth;
    const int64_t end   = dst->ne[1]*(ith + 1)/nth;

    const auto add = h2o_kernel_in_use<h2o_low_rank_kernel>({ H2O_LOW_RANK_KERNELS(ENTRY) })->add;

    alignas(64) float tile[H2O_LOW_RANK_MAX*ROWS];
    for (int64_t row = 0; row < n_out && start < end; row += ROWS) {
        const int64_t n = std::min(ROWS, n_out - row);
        transpose(b, row, n, scale, tile);

        if (n == ROWS) {
            float * to = (float *) dst->data + start*n_out + row;
            add(tile, (const float *) y->data + start*rank, rank, to, n_out, end - start);
            continue;
        }
        for (int64_t i = start; i < end; ++i) {
            float * to = (float *) dst->data + i*n_out + row;
            float sums[ROWS] = {};
            memcpy(sums, to, n*sizeof(float));
            add(tile, (const float *) y->data + i*rank, rank, sums, ROWS, 1);
            memcpy(to, sums, n*sizeof(float));
        }
    }
}
