#include "h2o/llama/memory.h"

#include "h2o/config/env.h"

#include "llama-impl.h"

#include <algorithm>
#include <stdexcept>

llama_memory_h2o::llama_memory_h2o(
        const llama_model & model,
                ggml_type   type_k,
                ggml_type   type_v,
                     bool   flash_attention,
                     bool   offload,
                 uint32_t   kv_size,
                 uint32_t   n_seq_max,
                 uint32_t   n_batch,
       const h2o_config   & config,
    const layer_filter_cb & filter)
    : fused_attention(flash_attention && !h2o_env("H2O_NO_FUSED_ATTENTION")), flash_attention(flash_attention), n_batch(n_batch) {
    streams.push_back(std::make_unique<h2o_stream>(model, type_k, type_v, offload, kv_size, n_seq_max, n_batch, config, filter));
    while (streams.size() < n_seq_max) {
        streams.push_back(std::make_unique<h2o_stream>(*streams.front(), streams.size()));
    }

    if (config.has_key_index() || config.has_cold_store()) {
        check_retrieval();
    }
}

h2o_stream & llama_memory_h2o::stream(llama_seq_id seq_id) const {
    if (!has_stream(seq_id)) {
        throw std::runtime_error(format("[h2o] there is no sequence %d, this context has %zu", seq_id, streams.size()));
    }
    return *streams[seq_id];
}

void llama_memory_h2o::check_retrieval() const {
    const auto & first = *streams.front();

    for (const auto & layer : first.sequence.layers) {
        const bool has_index = first.key_index != nullptr;

        if (!fused_attention || !(has_index ? first.has_fused_retrieval(layer.il) : first.has_fused_attention(layer.il))) {
            throw std::runtime_error(format("[h2o] %s needs attention as one operator, which layer %d does not have. Leave flash attention "
                        "on, H2O_NO_FUSED_ATTENTION unset and all layers on the CPU, or use %s", has_index ? "retrieval index" : "a cold store",
                        layer.il, has_index ? "retrieval ngrams" : "none"));
        }
    }
}

llama_memory_context_ptr llama_memory_h2o::init_update(llama_context * lctx, bool optimize) {
    return streams.front()->cache->init_update(lctx, optimize);
}

void llama_memory_h2o::clear(bool data) {
    for (auto & stream : streams) {
        stream->clear(data);
    }
}

std::map<ggml_backend_buffer_type_t, size_t> llama_memory_h2o::memory_breakdown() const {
    return streams.front()->memory_breakdown();
}

bool llama_memory_h2o::seq_rm(llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    bool res = true;
    for (auto & stream : streams) {
        if (seq_id < 0 || seq_id == stream->id) {
            res = remove(*stream, p0, p1) && res;
        }
    }
    return res;
}

bool llama_memory_h2o::remove(h2o_stream & stream, llama_pos p0, llama_pos p1) {
    // llama_context::decode drops what a failed call has added
    stream.rollback();

    const llama_pos n_tokens = stream.sequence.n_tokens();

    if (p0 >= n_tokens) {
        return true;
    }
    if (p1 >= 0 && p1 < n_tokens) {
        LLAMA_LOG_ERROR("%s: H2O can only remove the end of a sequence, not positions [%d, %d) of %d\n", __func__, p0, p1, n_tokens);
        return false;
    }
    if (p0 <= 0) {
        stream.clear(false);
        return true;
    }
    if (!stream.rewind(p0)) {
        LLAMA_LOG_ERROR("%s: H2O can remove positions from %u on, not from %d\n", __func__, stream.sequence.rewind_limit(), p0);
        return false;
    }
    return true;
}

[[noreturn]] static void h2o_refuse(const char * func, const char * reason) {
    throw std::runtime_error(format("[h2o] %s: %s", func, reason));
}

void llama_memory_h2o::seq_cp(llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    if (seq_id_src == seq_id_dst) {
        return;
    }

    const auto & src = stream(seq_id_src);
    auto       & dst = stream(seq_id_dst);

    if (p0 > 0 || (p1 >= 0 && p1 < (llama_pos) src.sequence.n_tokens())) {
        h2o_refuse("llama_memory_seq_cp", "H2O can only copy a whole sequence");
    }
    if (dst.sequence.n_tokens() > 0) {
        h2o_refuse("llama_memory_seq_cp", "H2O can only copy to an empty sequence: remove what it holds first");
    }
    dst.copy_from(src);
}

void llama_memory_h2o::seq_keep(llama_seq_id seq_id) {
    for (auto & stream : streams) {
        if (stream->id != seq_id) {
            stream->clear(false);
        }
    }
}

void llama_memory_h2o::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift) {
    GGML_UNUSED(seq_id);

    if (shift != 0 && p0 != p1) {
        h2o_refuse("llama_memory_seq_add", "H2O cannot move positions");
    }
}

void llama_memory_h2o::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    GGML_UNUSED(seq_id);

    if (d != 1 && p0 != p1) {
        h2o_refuse("llama_memory_seq_div", "H2O cannot move positions");
    }
}

llama_pos llama_memory_h2o::seq_pos_min(llama_seq_id seq_id) const {
    if (!has_stream(seq_id) || stream(seq_id).sequence.n_tokens() == 0) {
        return -1;
    }
    return std::max(0, (llama_pos) stream(seq_id).sequence.rewind_limit() - 1);
}

llama_pos llama_memory_h2o::seq_pos_max(llama_seq_id seq_id) const {
    return has_stream(seq_id) ? (llama_pos) stream(seq_id).sequence.n_tokens() - 1 : -1;
}
