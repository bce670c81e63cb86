// The kernel in float32. The file that includes this defines VL and KERNEL, the kernel's name.

#include "ggml/attention/kernels/in-place.h"

namespace {

constexpr bool ROUNDED_TILES = false;

// MR rows times NV vectors of VL floats stay in registers
constexpr int MR        = VL == 16 ? 12 : 6;
constexpr int NV        = 2;
constexpr int NR        = NV*VL;
constexpr int ROW_STEP  = MR;
constexpr int GRAIN     = 1;
constexpr int TILE_ROWS = 48/MR*MR;

typedef plain_weights weights;

// Panels of NR keys: [panel][d][NR]
void pack_k(const float * rows, int64_t d, int64_t key, int64_t, void * k) {
    for (int64_t p = 0; p < H2O_ATTN_PAD; p += NR) {
        float * panel = (float *) k + (key + p)*h2o_attn_pad(d);

        int64_t i = 0;
        for (; i + VL <= d; i += VL) {
            for (int64_t j = 0; j < NR; j += VL) {
                vec_f block[VL];
                for (int r = 0; r < VL; ++r) {
                    block[r] = load(rows + (p + j + r)*d + i);
                }
                transpose(block);
                for (int r = 0; r < VL; ++r) {
                    store(panel + (i + r)*NR + j, block[r]);
                }
            }
        }
        for (; i < d; ++i) {
            for (int64_t j = 0; j < NR; ++j) {
                panel[i*NR + j] = rows[(p + j)*d + i];
            }
        }
    }
}

// Panels of NR columns: [panel][key][NR]
void pack_v(const float * rows, int64_t d, int64_t key, int64_t n_k, void * v) {
    for (int64_t p = 0; p < d; p += NR) {
        float * panel = (float *) v + p*n_k + key*NR;
        for (int64_t i = 0; i < H2O_ATTN_PAD; ++i) {
            for (int64_t j = 0; j < NR; ++j) {
                panel[i*NR + j] = p + j < d ? rows[i*d + p + j] : 0.0f;
            }
        }
    }
}

// c[M][NR] = a[M][n]*b[n][NR], added to c if add
template <int M>
void multiply_rows(const float * a, int64_t lda, const float * b, int64_t n, float * c, int64_t ldc, bool add) {
    vec_f sum[M][NV] = {};

    const auto add_product = [&](int64_t k) {
        vec_f row[NV];
        for (int j = 0; j < NV; ++j) {
            row[j] = load(b + k*NR + j*VL);
        }
        for (int i = 0; i < M; ++i) {
            for (int j = 0; j < NV; ++j) {
                sum[i][j] += a[i*lda + k]*row[j];
            }
        }
    };

#pragma GCC unroll 4
    for (int64_t k = 0; k < n; ++k) {
        add_product(k);
    }

    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < NV; ++j) {
            float * dst = c + i*ldc + j*VL;
            store(dst, add ? load(dst) + sum[i][j] : sum[i][j]);
        }
    }
}

void pack_q(float *, int64_t, int64_t) {}

struct product_setup {};

void multiply(int n_rows, const float * a, int64_t lda, const float * b, int64_t n, float * c, int64_t ldc, bool add,
        bool) {
    with_constant<MR>(n_rows, [&](auto m) { multiply_rows<decltype(m)::value>(a, lda, b, n, c, ldc, add); });
}

} // namespace

#include "ggml/attention/kernels/tile.h"
