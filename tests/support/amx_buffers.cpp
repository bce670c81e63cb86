// Products with weights in upstream's AMX buffers, in the place of ggml-cpu/amx/mmq.cpp where the CPU has no AMX: tools/check_kernels.py
// amx. Weights are stored as in the file. What mmq.cpp cannot do ends the process.

#include "amx/mmq.h"
#include "ggml-cpu.h"

#include <cstring>
#include <vector>

// ggml_amx_init asks the system for tiles
extern "C" long emulated_syscall(long, ...);

extern "C" long emulated_syscall(long, ...) {
    return 0;
}

size_t ggml_backend_amx_get_alloc_size(const ggml_tensor * weights) {
    return ggml_nbytes(weights);
}

void ggml_backend_amx_convert_weight(ggml_tensor * weights, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(weights));
    memcpy(weights->data, data, size);
}

size_t ggml_backend_amx_desired_wsize(const ggml_tensor *) {
    return 0;
}

void ggml_backend_amx_mul_mat(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * x       = dst->src[1];
    GGML_ASSERT(ggml_is_matrix(weights) && "mmq.cpp packs one matrix");
    GGML_ASSERT(ggml_is_contiguous(x) && x->type == GGML_TYPE_F32);

    const ggml_type_traits_cpu * traits = ggml_get_type_traits_cpu(weights->type);

    const int64_t n = weights->ne[0];

    std::vector<char> column(ggml_row_size(traits->vec_dot_type, n));
    for (int64_t i = params->ith; i < ggml_nrows(x); i += params->nth) {
        ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float((const float *) x->data + i*n, column.data(), n);
        for (int64_t j = 0; j < weights->ne[1]; ++j) {
            traits->vec_dot(n, (float *) dst->data + i*weights->ne[1] + j, 0, (const char *) weights->data + j*weights->nb[1], 0,
                column.data(), 0, 1);
        }
    }
}
