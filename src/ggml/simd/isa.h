#pragma once

#include "ggml.h"

#include <initializer_list>
#include <utility>

// Instruction sets for which H2O's operators have kernels, by what a kernel needs.
enum class h2o_isa {
    PORTABLE,
    DOTPROD,     // NEON with products of bytes
    I8MM,        // and of matrices of bytes
    AVX2,        // with FMA and F16C
    AVX_VNNI,
    AVX512,      // F, DQ, BW and VL
    AVX512_VNNI,
    AVX512_BF16, // with VNNI
    AMX,         // tiles of BF16 and of bytes, and all of the above
};

constexpr int H2O_N_ISAS = 9;

GGML_API const char * h2o_isa_name(h2o_isa isa);

// Whether this CPU has it. With the environment's H2O_ISA, a name, as if it had none of those after that one.
GGML_API bool h2o_has_isa(h2o_isa isa);

// For tests and benchmarks: kernels that need none of those after this one, from now on. Not while a graph is being planned or computed.
GGML_API void h2o_set_isa(h2o_isa isa);

GGML_API bool h2o_uses_isa(h2o_isa isa);

// Of an operator's kernels, the best first and NULL where the compiler has no such instructions, the one in use. NULL if there is none.
template <typename K>
const K * h2o_kernel_in_use(std::initializer_list<std::pair<h2o_isa, const K *>> kernels) {
    for (const auto & [isa, kernel] : kernels) {
        if (kernel && h2o_uses_isa(isa)) {
            return kernel;
        }
    }
    return nullptr;
}
