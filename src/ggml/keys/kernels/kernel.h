#pragma once

// The part of ggml_h2o_keys_* that is compiled once for each instruction set. Its files include no headers with inline
// functions: the linker could take a copy that was compiled for another CPU.

#include <stdint.h>

struct h2o_keys_kernel {
    void (*hadamard)(float * x, int64_t n, int64_t size);
    void (*widen)(const void * x, int64_t n, float * y);
};

// NULL where the compiler has no such instructions
extern const h2o_keys_kernel * const h2o_keys_portable;
extern const h2o_keys_kernel * const h2o_keys_avx2;
extern const h2o_keys_kernel * const h2o_keys_avx512;
