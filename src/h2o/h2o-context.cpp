#include "h2o-context.h"

#include "llama-kv-cache-h2o.h"

#include "llama-cparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <stdexcept>

h2o_config h2o_config_from_params(const llama_context_params & params) {
    h2o_config res;
    res.chunk_size   = params.n_ubatch == 0 ? params.n_batch : std::min(params.n_batch, params.n_ubatch);
    res.local_window = params.h2o_local_window;
    res.heavy_budget = params.h2o_heavy_budget;
    res.sink_tokens  = params.h2o_sink_tokens;
    res.scorer       = &h2o_find_scorer(params.h2o_scorer);
    res.pooling      = params.h2o_pooling;
    res.score_type   = params.h2o_score_type;
    res.schedule     = params.h2o_schedule;

    if (res.enabled()) {
        res.validate();

        if (params.n_seq_max > 1) {
            throw std::runtime_error(format("[h2o] H2O holds one sequence per context, but n_seq_max is %u", params.n_seq_max));
        }
    }

    return res;
}

llama_memory_i * h2o_create_memory(const llama_model & model, const llama_memory_params & params, const llama_cparams & cparams,
        const llama_memory_i::layer_filter_cb & filter) {
    llama_kv_cache_h2o::check_model(model);

    return new llama_kv_cache_h2o(model, params.type_k, params.type_v, !cparams.flash_attn, cparams.offload_kqv,
            cparams.n_ctx_seq, cparams.n_batch, cparams.h2o, filter);
}

void h2o_check_memory(const llama_model & model, const llama_cparams & cparams, const llama_memory_i * memory) {
    if (cparams.h2o.enabled() && !dynamic_cast<const llama_kv_cache_h2o *>(memory)) {
        throw std::runtime_error(format("[h2o] H2O needs a model on the plain KV cache, but %s has another kind of memory (sliding window, recurrent, or none). "
                    "Switch H2O off for it", model.arch_name().c_str()));
    }
}

uint32_t h2o_graph_max_nodes(const llama_model & model) {
    // phase 1 cuts a call into at most 3 runs of chunks, the attention of each takes fewer than 256 nodes
    return 3*256*model.hparams.n_layer_all;
}
