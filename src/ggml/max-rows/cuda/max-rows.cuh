#include "ggml-cuda/common.cuh"

void ggml_cuda_op_max_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
