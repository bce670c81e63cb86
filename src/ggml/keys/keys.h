#pragma once

#include "ggml.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Keys and how RoPE has turned them, to compare their directions without that. On the CPU, by vectors; the kernel is the one for
// the same CPUs as that of ggml_h2o_attn in use.
struct ggml_h2o_keys {
    const void  * k;      // [n, n_head, d]
    bool          is_f16; // else float32
    int64_t       n;
    int64_t       n_head;
    int64_t       d;

    // The pairs (a, b) of the first 2*n_pairs numbers of key i are turned by angle[i, j]. Taken back they are (a*cos + b*sin, b*cos - a*sin).
    const float * cosines; // [n, n_pairs]
    const float * sines;
    int64_t       n_pairs;        // 0: no rotation
    bool          is_interleaved; // pairs are (2j, 2j + 1), else (j, j + n_pairs)
};

// sums [n_head, d] += k/|k|, turned back; inv_norms [n, n_head] = 1/|k|, 0 for a key of zeros. The order of numbers in sums is
// that of ggml_h2o_keys_dot.
GGML_API void ggml_h2o_keys_add(const struct ggml_h2o_keys * keys, float * inv_norms, float * sums);

// dots [n, n_head] = k, turned back, times sums [n_head, d]
GGML_API void ggml_h2o_keys_dot(const struct ggml_h2o_keys * keys, const float * sums, float * dots);

// Normalised Walsh-Hadamard transform of every block of size numbers, a power of 2 and at least 16. It is its own inverse.
GGML_API void ggml_h2o_hadamard(float * x, int64_t n, int64_t size);

// y[i] = x[i], for n numbers
GGML_API void ggml_h2o_widen_f16(const ggml_fp16_t * x, int64_t n, float * y);

#ifdef __cplusplus
}
#endif
