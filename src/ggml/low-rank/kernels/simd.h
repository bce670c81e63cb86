// Lanes are rows of B: there are no sums across lanes, which products with rows as short as a rank would spend their time on.
// The file that includes this defines VL and KERNEL, the kernel's name.

#include "ggml/low-rank/kernels/kernel.h"
#include "ggml/simd/vec.h"

namespace {

constexpr int VECTORS = 4;              // registers for sums: so many for each token
constexpr int TOKENS  = VL == 16 ? 4 : 2;

template <int N>
inline void add_tokens(const float * tile, const float * y, int64_t rank, float * sums, int64_t stride) {
    for (int64_t first = 0; first < H2O_LOW_RANK_ROWS; first += VECTORS*VL) {
        vec_f sum[N][VECTORS];
        for (int i = 0; i < N; ++i) {
            for (int v = 0; v < VECTORS; ++v) {
                sum[i][v] = load(sums + i*stride + first + v*VL);
            }
        }
        for (int64_t r = 0; r < rank; ++r) {
            vec_f b[VECTORS];
            for (int v = 0; v < VECTORS; ++v) {
                b[v] = load(tile + r*H2O_LOW_RANK_ROWS + first + v*VL);
            }
            for (int i = 0; i < N; ++i) {
                const vec_f x = broadcast(y[i*rank + r]);
                for (int v = 0; v < VECTORS; ++v) {
                    sum[i][v] += x*b[v];
                }
            }
        }
        for (int i = 0; i < N; ++i) {
            for (int v = 0; v < VECTORS; ++v) {
                store(sums + i*stride + first + v*VL, sum[i][v]);
            }
        }
    }
}

void add(const float * tile, const float * y, int64_t rank, float * sums, int64_t stride, int64_t n) {
    int64_t i = 0;
    for (; i + TOKENS <= n; i += TOKENS) {
        for (int j = 0; j < TOKENS; ++j) {
            for (int line = 0; line < H2O_LOW_RANK_ROWS; line += 16) {
                __builtin_prefetch(sums + (i + TOKENS + j)*stride + line, 1, 3); // of the next tokens
            }
        }
        add_tokens<TOKENS>(tile, y + i*rank, rank, sums + i*stride, stride);
    }
    for (; i < n; ++i) {
        add_tokens<1>(tile, y + i*rank, rank, sums + i*stride, stride);
    }
}

} // namespace

extern const h2o_low_rank_kernel KERNEL = { add };
