#include "ggml-cpu-impl.h"
#include "ops.h"

#include "ggml/attention/cpu/blocks.h"
#include "ggml/attention/cpu/packed.h"
#include "ggml/attention/kernels/kernels.h"

// f(the way in which it is computed)
template <typename F>
static void with_way(const ggml_tensor * dst, int n_threads, const F & f) {
    const h2o_attn_kernel & kernel = h2o_attn_kernel_in_use();

    if (h2o_attn_blocks::is_for(dst)) {
        f(h2o_attn_blocks(dst, kernel, n_threads));
    } else {
        f(h2o_attn_packed(dst, kernel, n_threads));
    }
}

size_t ggml_h2o_attn_work_size(const ggml_tensor * dst, int n_threads) {
    size_t size = 0;
    with_way(dst, n_threads, [&](const auto & way) { size = way.size() + 64; });
    return size;
}

void ggml_compute_forward_h2o_attn(const ggml_compute_params * params, ggml_tensor * dst) {
    with_way(dst, params->nth, [&](const auto & way) {
        GGML_ASSERT(way.size() + 64 <= params->wsize && "planned for as many threads or more");
        way.compute(params);
    });
}
