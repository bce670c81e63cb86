// Pairs of numbers in BF16, for columns that are rounded to them.

#include "ggml/product/kernels/steps.h"

namespace {

// Pairs of numbers in BF16, to which columns are rounded, as upstream does.
struct pair_kind {
    static constexpr int DWORDS = 16;

    static void load_dwords(const char * const * column, int64_t offset, int i, vec_f * x) {
        const auto pairs = [&](int j) { return (__m256i) _mm512_cvtneps_pbh(_mm512_loadu_ps(column[j] + offset + i*64)); };
        for (int j = 0; j < 8; ++j) {
            x[j] = (vec_f) join(pairs(j), pairs(j + 8));
        }
        transpose<8>(x);
    }

    static void pack(const char * column, char * dst) {
        const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(column + 64), _mm512_loadu_ps(column));
        _mm512_storeu_si512(dst, (__m512i) x);
    }

    static vec_f multiply_add(vec_f sum, vec_f w, vec_f x) {
        return (vec_f) _mm512_dpbf16_ps((__m512) sum, (__m512bh) w, (__m512bh) x);
    }
};

struct bf16_pairs : pair_kind {
    using kind = pair_kind;

    static vec_f dwords(const char * block, int64_t i) {
        return load((const float *) block + i*VL);
    }
};

} // namespace
