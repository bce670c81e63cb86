#pragma once

#include "ggml.h"

#include <initializer_list>
#include <utility>

// Instruction sets for which H2O's operators have kernels.
enum class h2o_isa {
    PORTABLE,
    AVX2,        // with FMA and F16C
    AVX_VNNI,
    AVX512,      // F, DQ, BW and VL
    AVX512_VNNI,
    AMX,         // tiles of BF16, AVX-512 BF16, and all of the above
};

constexpr int H2O_N_ISAS = 6;

GGML_API const char * h2o_isa_name(h2o_isa isa);

// Whether this CPU has it. The environment's H2O_ISA, a name, hides all later ones.
GGML_API bool h2o_has_isa(h2o_isa isa);

// For tests and benchmarks: from now on, kernels use no later instruction set. Not while a graph is planned or
// computed.
GGML_API void h2o_set_isa(h2o_isa isa);

GGML_API bool h2o_uses_isa(h2o_isa isa);

// The first of an operator's kernels that the CPU can run: the best ones come first. NULL if there is none.
template <typename K>
const K * h2o_kernel_in_use(std::initializer_list<std::pair<h2o_isa, const K *>> kernels) {
    for (const auto & [isa, kernel] : kernels) {
        if (kernel && h2o_uses_isa(isa)) {
            return kernel;
        }
    }
    return nullptr;
}
