// Positions to which a sequence that is restored from its state can be cut.

#include "h2o/llama/context.h"

#include "llama-h2o.h"

#include <algorithm>
#include <vector>

static std::vector<llama_h2o_points> points_of(const llama_h2o_kv & kv) {
    if (const uint32_t step = kv.context.rewind_step(kv); step > 0 && kv.state().n_tokens >= step) {
        return { { step, kv.state().n_tokens } };
    }
    std::vector<llama_h2o_points> res;
    for (const uint32_t pos : kv.sequence.state_points()) {
        if (pos < kv.state().n_tokens && !kv.context.caches.side.empty() && !kv.sequence.side_of(pos)) {
            continue;
        }
        if (res.empty() || res.back().last + 1 != pos) {
            res.push_back({ pos, pos });
        }
        res.back().last = pos;
    }
    return res;
}

static std::vector<llama_h2o_points> points_without_h2o(const llama_context * ctx, uint32_t n_tokens) {
    if (n_tokens == 0) {
        return {};
    }
    const auto *   model    = llama_get_model(ctx);
    const uint32_t n_swa    = llama_model_n_swa(model);
    const bool     is_whole = !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model) &&
            (n_swa == 0 || n_tokens <= n_swa);

    return { { is_whole ? 1 : n_tokens, n_tokens } };
}

size_t llama_h2o_state_points(const llama_context * ctx, llama_seq_id seq_id, llama_h2o_points * dst, size_t n) {
    const auto * kv  = llama_get_h2o_kv_seq(ctx, seq_id);
    const auto   res = kv ? points_of(*kv) :
            points_without_h2o(ctx, llama_memory_seq_pos_max(llama_get_memory(ctx), seq_id) + 1);

    std::copy_n(res.begin(), std::min(n, res.size()), dst);
    return res.size();
}
