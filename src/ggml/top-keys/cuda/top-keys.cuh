#include "ggml-cuda/common.cuh"

void ggml_cuda_op_h2o_top_keys(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

bool ggml_cuda_h2o_top_keys_supported(int device, const ggml_tensor * dst);
