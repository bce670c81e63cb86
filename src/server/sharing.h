#pragma once

#include "server/slots.h"

// Returns whether the slot may read its prompt. A beginning that several prompts share is read once, by the slot that began
// or was asked first. The others wait until it has read more of that beginning than they have, and become its forks. A
// fork copies all of the other slot's text, so a short beginning of a long text is read again.
template <typename Slot>
bool server_h2o_share(llama_context * ctx, Slot & slot, const std::vector<Slot> & slots) {
    static constexpr int32_t N_LEAST = 64, LEAST_SHARE = 16;

    const auto & task = *slot.task;
    if (!server_h2o_enabled(ctx) || !task.params.cache_prompt || !task.need_sampling()) {
        return true;
    }
    const Slot * best    = nullptr; // to copy
    bool         is_read = true;
    int32_t      n_best  = slot.prompt.tokens.get_common_prefix(task.tokens) + N_LEAST - 1;
    for (const auto & other : slots) {
        const auto * kv = llama_get_h2o_kv_seq(ctx, other.id);
        if (other.id == slot.id || !are_lora_equal(other.prompt.lora, slot.prompt.lora) ||
            llama_h2o_kv_info(kv).exact_end < UINT32_MAX) { // it was put together
            continue;
        }
        const auto &  text  = other.prompt.tokens; // its last tokens may not be computed yet
        const int32_t n_all = std::min<int32_t>(text.size(), llama_memory_seq_pos_max(llama_get_memory(ctx), other.id) + 1);
        const int32_t n_has = std::min<int32_t>(text.get_common_prefix(task.tokens), n_all);
        const bool    reads = other.is_processing() && !other.task->is_child() &&
            (other.stats.h2o.has_begun || other.task->id < task.id);
        const int32_t n = reads ? std::max<int32_t>(n_has, other.task->tokens.get_common_prefix(task.tokens)) : n_has;
        if (n + (n == n_has && !is_read) <= n_best || (n == n_has && n < n_all/LEAST_SHARE)) {
            continue;
        }
        const int32_t n_kept = n == n_has ? llama_h2o_kv_rewind_point(kv, n) : n; // of a fork
        if (n_kept + (n == n_has && !is_read) > n_best) {
            best    = &other;
            n_best  = n_kept;
            is_read = n == n_has;
        }
    }
    if (best && is_read) {
        llama_synchronize(ctx);
        best->copy_prompt_to(slot);
    }
    return is_read;
}
