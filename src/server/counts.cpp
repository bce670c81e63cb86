#include "server/counts.h"

#include "server-common.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

void server_h2o_counts::add(const server_h2o_counts & other) {
    n_chunks   += other.n_chunks;
    kv_kept    += other.kv_kept;
    kv_cold    += other.kv_cold;
    kv_dropped += other.kv_dropped;
}

void server_h2o_count(const llama_context * ctx, llama_seq_id id, server_h2o_counts & counts) {
    if (const auto * kv = llama_get_h2o_kv_seq(ctx, id)) {
        const auto stats = llama_h2o_kv_stats(kv);

        counts.n_chunks   = llama_h2o_kv_info(kv).chunk_index;
        counts.kv_kept    = stats.bytes_kept;
        counts.kv_cold    = stats.bytes_cold;
        counts.kv_dropped = stats.bytes_dropped;
    }
}

void server_h2o_stop::add_to(common_json & about) const {
    if (token >= 0) {
        about["cache_stop"] = { { "token", token }, { "kept", kept }, { "asked", asked } };
    }
}

void server_h2o_counts::add_timings(common_json & timings) const {
    stop.add_to(timings);
    if (n_chunks > 0) {
        timings["h2o_chunks"]           = n_chunks;
        timings["h2o_kv_kept_bytes"]    = kv_kept;
        timings["h2o_kv_cold_bytes"]    = kv_cold;
        timings["h2o_kv_dropped_bytes"] = kv_dropped;
    }
    if (n_moved > 0) {
        timings["cache_moved"] = n_moved;
    }
}

common_json server_h2o_counts::prompt_details(int32_t n_cached) const {
    common_json res = { { "cached_tokens", n_cached } };
    if (n_moved > 0) {
        res["moved_tokens"] = n_moved;
    }
    stop.add_to(res);
    if (!attention.is_null()) {
        res["attention"] = attention;
    }
    return res;
}

common_json server_h2o_attention(const llama_context * ctx, llama_seq_id id,
        const std::function<llama_token(size_t)> & token, int32_t n_prompt, int32_t end, int32_t n_top) {
    auto * kv = llama_get_h2o_kv_seq(ctx, id);
    if (kv && (int32_t) llama_h2o_kv_info(kv).n_tokens < n_prompt) {
        return nullptr;
    }
    auto heads = common_json::array();
    for (uint32_t i = 0; kv && i < llama_h2o_kv_n_layer(kv); ++i) {
        const int32_t il = llama_h2o_kv_layer_id(kv, i);
        const size_t  n  = llama_h2o_kv_info(kv).n_tokens;

        std::vector<float> weights(llama_h2o_kv_n_head_kv(kv, il)*n);
        const bool is_kept = llama_h2o_kv_attention(kv, il, weights.data());
        for (size_t head = 0; is_kept && head*n < weights.size(); ++head) {
            const float * w = weights.data() + head*n;
            const auto is_more = [&](int32_t a, int32_t b) { return w[a] != w[b] ? w[a] > w[b] : a < b; };

            std::vector<int32_t> positions(end);
            std::iota(positions.begin(), positions.end(), 0);
            std::partial_sort(positions.begin(), positions.begin() + std::min(n_top, end), positions.end(), is_more);
            positions.resize(std::min(n_top, end));
            std::vector<float> read;
            std::transform(positions.begin(), positions.end(), std::back_inserter(read), [&](int32_t i) { return w[i]; });

            heads.push_back(common_json { { "layer", il }, { "head", head },
                { "sum", std::accumulate(w, w + end, 0.0f) }, { "positions", positions }, { "weights", read } });
        }
    }
    server_h2o_drop_attention(ctx, id);
    auto        pieces = common_json::array();
    std::string text;
    for (int32_t i = 0; i < n_prompt; ++i) { // the last token of a character has all of it
        text += token(i) == LLAMA_TOKEN_NULL ? "" : common_token_to_piece(ctx, token(i));
        const size_t n = validate_utf8(text);
        pieces.push_back(text.substr(0, n));
        text.erase(0, n);
    }
    return { { "end", end }, { "pieces", pieces }, { "heads", heads } };
}
