#include "server/slots.h"

#include "h2o/llama/memory/moves.h"

#include "chat.h"
#include "log.h"
#include "mtmd.h"
#include "server-common.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

// how many tokens at a prompt's end attend to everything: without messages, and at most of the last user's message
static constexpr int32_t N_TAIL_TEXT    = 128;
static constexpr int32_t N_TAIL_MESSAGE = 512;

bool server_h2o_prepare(common_params & params) {
    if (!llama_h2o_params_enabled(&params.h2o)) {
        return true;
    }

    const auto & spec = params.speculative;
    const auto is_any = [](auto type) { return type != COMMON_SPECULATIVE_TYPE_NONE; };
    if (spec.has_dft() || spec.has_synth() || std::any_of(spec.types.begin(), spec.types.end(), is_any)) {
        LOG_ERR("H2O does not work with speculative decoding in the server: leave out the options of drafts, or switch "
                "H2O off\n");
        return false;
    }

    if (params.ctx_shift) {
        LOG("--context-shift is off with H2O: a text that fills its slot ends there\n");
    }

    // every sequence has a cache of its own; with a shared one the server would clear slots to make room for others
    params.kv_unified = false;
    // a fork takes an idle slot's text: a copy of each in RAM would stop all slots
    params.cache_idle_slots = false;
    return true;
}

void server_h2o_announce(const common_params & params, int32_t n_ctx, const std::vector<std::string> & at) {
    const auto    name = params.model_alias.empty() ? params.model.path : *params.model_alias.begin();
    const int32_t n    = params.embedding ? std::min(n_ctx, params.n_ubatch) : n_ctx;
    LOG("%s: texts of %s, %d at a time, at %s\n", name.c_str(),
        n == INT32_MAX ? "any length" : string_format("up to %d tokens", n).c_str(), params.n_parallel,
        string_join(at, " and ").c_str());
}

common_context_seq_rm_type server_h2o_init(llama_context * ctx, const common_params & params) {
    if (!server_h2o_enabled(ctx)) {
        return common_context_can_seq_rm(ctx);
    }
    // with eviction and no cold store the rows of earlier boundaries are deleted
    const bool has_boundaries = !params.h2o.evict || params.h2o.cold_store[0];

    for (llama_seq_id id = 0; auto * kv = llama_get_h2o_kv_seq(ctx, id); ++id) {
        if (has_boundaries) {
            llama_h2o_kv_keep_boundaries(kv);
        }
    }
    return COMMON_CONTEXT_SEQ_RM_TYPE_PART; // sequences have their past: upstream makes no checkpoints
}

bool server_h2o_takes_media(const llama_context * ctx, const mtmd_context * projector) {
    const char * reason =
        mtmd_decode_use_mrope(projector)               ? "have positions of several dimensions (M-RoPE)" :
        mtmd_decode_use_non_causal(projector, nullptr) ? "attend to each other both ways" : nullptr;

    if (!reason || !server_h2o_enabled(ctx)) {
        return true;
    }
    LOG_ERR("H2O does not work with this model's images, whose parts %s: leave out the multimodal projector, or switch "
            "H2O off\n", reason);
    return false;
}

bool server_h2o_enabled(const llama_context * ctx) {
    return llama_get_h2o_kv(ctx);
}

static bool is_endless(const llama_context * ctx) {
    const auto * kv = llama_get_h2o_kv(ctx);

    return kv && llama_h2o_kv_info(kv).n_positions == INT32_MAX;
}

std::vector<int32_t> server_h2o_stops(const common_chat_msg_spans & spans, int32_t n_prompt) {
    constexpr int32_t N_BEFORE_END = 4, N_APART = 512;

    const int32_t last_user_pos = spans.last_user_message_pos();
    if (last_user_pos < 0) {
        return { n_prompt - N_BEFORE_END };
    }
    std::vector<int32_t> res;
    for (const auto & span : spans.spans) {
        const int32_t pos = span.pos;
        if (span.role == COMMON_CHAT_ROLE_USER && (res.empty() || pos == last_user_pos || pos >= res.back() + N_APART)) {
            res.push_back(pos);
        }
    }
    return res;
}

int32_t server_h2o_piece_end(const llama_context * ctx, llama_seq_id id, const std::vector<int32_t> & stops,
    int32_t n_past, int32_t n_prompt, int32_t n_room) {
    const auto * kv = llama_get_h2o_kv_seq(ctx, id);
    if (!kv) {
        return std::min(n_prompt, n_past + n_room);
    }
    const auto info = llama_h2o_kv_info(kv);
    n_prompt = std::min<uint32_t>(n_prompt, info.next_piece);
    for (const int32_t stop : stops) {
        n_prompt = stop > n_past && info.rewind_step == 0 ? std::min(n_prompt, stop) : n_prompt;
    }
    const int32_t start = n_past - n_past % (int32_t) info.chunk_size;
    const int32_t end   = (int32_t) std::min<int64_t>(n_prompt, (int64_t) start + info.chunk_size);
    if (end <= n_past + n_room) {
        return end;
    }
    const int32_t last_tile = n_past + n_room - (n_past + n_room - start) % (int32_t) info.tile;
    // a tile is larger than any call: it is cut
    return last_tile > n_past ? last_tile : n_room < (int32_t) llama_n_batch(ctx) ? n_past : n_past + n_room;
}

int32_t server_h2o_n_ctx(const llama_context * ctx, int32_t n_ctx) {
    return is_endless(ctx) ? INT32_MAX : n_ctx;
}

int32_t server_h2o_n_predict(const llama_context * ctx, int32_t n_predict) {
    return n_predict == -1 && is_endless(ctx) ? llama_model_n_ctx_train(llama_get_model(ctx)) : n_predict;
}

int32_t server_h2o_number_below(const std::string & value, int32_t limit) {
    const bool is_number =
        !value.empty() && value.size() < 10 && value.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || std::stoi(value) >= limit) {
        throw std::invalid_argument(
            "expected a number from 0 to " + std::to_string(limit - 1) + ", got '" + value.substr(0, 20) + "'");
    }
    return std::stoi(value);
}

static int32_t n_tokens(const llama_h2o_kv * kv) {
    return llama_h2o_kv_info(kv).n_tokens;
}

int32_t server_h2o_rewind(
    llama_context * ctx, llama_seq_id id, const server_h2o_is_inside & is_inside, int32_t n_past, int32_t n_prompt) {
    const auto * kv = llama_get_h2o_kv_seq(ctx, id);
    if (!kv) {
        return n_past;
    }
    // a call that failed has left fewer tokens than the slot was given
    int32_t res = llama_h2o_kv_rewind_point(kv, std::min({ n_past, n_prompt - 1, n_tokens(kv) }));
    while (is_inside(res)) {
        res = llama_h2o_kv_rewind_point(kv, res - 1);
    }
    try {
        if (llama_memory_seq_rm(llama_get_memory(ctx), id, res, -1)) {
            return res;
        }
    } catch (const std::exception & e) { // a cold store that cannot be read
        LOG_ERR("%s: slot %d: %s\n", __func__, id, e.what());
    }
    llama_memory_seq_rm(llama_get_memory(ctx), id, -1, -1);
    return 0;
}

llama_h2o_info server_h2o_info(const llama_context * ctx, llama_seq_id id) {
    llama_h2o_info none = {};
    none.next_piece = none.exact_end = UINT32_MAX;

    const auto * kv = llama_get_h2o_kv_seq(ctx, id);
    return kv ? llama_h2o_kv_info(kv) : none;
}

int32_t server_h2o_arrange(llama_context * ctx, llama_seq_id id, const llama_tokens & text, const llama_tokens & prompt,
    int32_t n_past, int32_t end, int32_t n_min) try {
    const auto * kv = llama_get_h2o_kv_seq(ctx, id);
    if (!kv || !llama_memory_can_shift(llama_get_memory(ctx))) {
        return -1;
    }
    // a call that failed has left fewer tokens than the slot was given
    const llama_tokens known(text.begin(), text.begin() + std::min<size_t>(text.size(), n_tokens(kv)));
    const llama_tokens next(prompt.begin(), prompt.begin() + end);
    n_past = std::min(n_past, (int32_t) known.size());

    const auto pieces = h2o_find_pieces(known, next, n_past, n_min);
    if (pieces.empty()) {
        return -1;
    }
    n_past = llama_h2o_kv_rewind_point(kv, n_past);
    h2o_arrange(ctx, id, n_past, pieces);
    return n_past;
} catch (const std::exception & e) {
    LOG_ERR("%s: slot %d: %s\n", __func__, id, e.what());
    return -1;
}

void server_h2o_set_call(llama_context * ctx, llama_seq_id id, bool is_prompt, uint32_t n_tail) {
    if (auto * kv = llama_get_h2o_kv_seq(ctx, id)) {
        llama_h2o_set_call(kv, is_prompt ? LLAMA_H2O_CALL_PREFILL : LLAMA_H2O_CALL_DECODE, n_tail);
    }
}

void server_h2o_keep_attention(const llama_context * ctx, llama_seq_id id, bool keeps, bool begins) {
    if (auto * kv = llama_get_h2o_kv_seq(ctx, id); kv && (begins || !keeps)) {
        llama_h2o_kv_keep_attention(kv, keeps);
    }
}

void server_h2o_drop_attention(const llama_context * ctx, llama_seq_id id) {
    server_h2o_keep_attention(ctx, id, true, true); // forgets it
    server_h2o_keep_attention(ctx, id, false, false);
}

int32_t server_h2o_tail_begin(int32_t last_user_pos, int32_t n_prompt) {
    return std::max(0, last_user_pos < 0 ? n_prompt - N_TAIL_TEXT : std::max(last_user_pos, n_prompt - N_TAIL_MESSAGE));
}
