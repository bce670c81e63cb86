// K and V of a sequence, as the host sees them.

#include "h2o/store/stream.h"

#include "llama-hparams.h"
#include "llama-model.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <cmath>
#include <numeric>

std::vector<ggml_tensor *> h2o_stream::storage(int32_t il) const {
    ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    return { keys(ctx.get(), il)->view_src, values(ctx.get(), il)->view_src };
}

static h2o_codec_type codec_type(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16:  return H2O_CODEC_TYPE_F16;
        case GGML_TYPE_BF16: return H2O_CODEC_TYPE_BF16;
        case GGML_TYPE_F32:  return H2O_CODEC_TYPE_F32;
        case GGML_TYPE_Q8_0: return H2O_CODEC_TYPE_Q8_0;
        case GGML_TYPE_Q4_0: return H2O_CODEC_TYPE_Q4_0;
        case GGML_TYPE_Q4_1: return H2O_CODEC_TYPE_Q4_1;
        case GGML_TYPE_Q5_0: return H2O_CODEC_TYPE_Q5_0;
        case GGML_TYPE_Q5_1: return H2O_CODEC_TYPE_Q5_1;
        default:             return H2O_CODEC_TYPE_U8;
    }
}

std::shared_ptr<h2o_cold_codec> h2o_stream::make_cold_codec() const {
    const auto & params = sequence.config.lossless;
    if (!cold_place || params.mode == LLAMA_H2O_LOSSLESS_OFF) {
        return nullptr;
    }
    std::vector<h2o_cold_codec::layer> layers;
    for (const auto & layer : sequence.layers) {
        const auto kv = storage(layer.il);
        layers.push_back({ layer.il, { codec_type(kv[0]->type), codec_type(kv[1]->type) } });
    }
    return std::make_shared<h2o_cold_codec>(params, cold_place, std::move(layers));
}

void h2o_stream::count_bytes(uint64_t & kept, uint64_t & dropped) const {
    const uint64_t n          = sequence.n_tokens();
    const uint32_t open_start = sequence.open_start();
    const uint64_t n_compact  = sequence.config.n_memory(open_start) + n - open_start;

    const uint64_t n_kept = sequence.layout.is_compact ? n_compact : n;

    kept    = n_kept*bytes_per_row + n*bytes_per_dense_row;
    dropped = sequence.cold ? 0 : (n - n_kept)*bytes_per_row;
}

// K and V of one row of all layers
uint64_t h2o_stream::row_bytes(const llama_kv_cache * c) const {
    uint64_t res = 0;
    for (const uint32_t il : c ? c->get_layer_ids() : std::vector<uint32_t>()) {
        for (const ggml_tensor * t : storage(il)) {
            res += t->nb[1];
        }
    }
    return res;
}

void h2o_stream::copy_from(const h2o_stream & src) {
    const uint32_t n = src.sequence.n_tokens();
    if (n == 0) {
        return;
    }

    for (const auto * c : { cache.get(), dense_cache.get() }) {
        for (const uint32_t il : c ? c->get_layer_ids() : std::vector<uint32_t>()) {
            const uint32_t n_used = c == dense_cache.get() || !sequence.layout.is_compact ? n : sequence.layout.n_rows();
            for (ggml_tensor * t : storage(il)) {
                h2o_copy_rows(t, src.id*t->ne[1], id*t->ne[1], n_used);
            }
        }
    }
    if (key_index) {
        key_index->copy(src.id, id, n);
    }

    fill_cells(n);
    sequence.copy_from(src.sequence);
}

void h2o_stream::fill_cells(uint32_t n) {
    auto * full = full_cache();
    if (!full || n == 0) {
        return;
    }

    // by a batch that is not computed
    std::vector<llama_pos>      pos(n);
    std::vector<int32_t>        n_seq_id(n, 1);
    std::vector<llama_seq_id>   seq_id(1, id);
    std::vector<llama_seq_id *> seq_ids(n, seq_id.data());
    std::iota(pos.begin(), pos.end(), 0);

    llama_ubatch ubatch = {};
    ubatch.n_tokens = n;
    ubatch.n_pos    = 1;
    ubatch.pos      = pos.data();
    ubatch.n_seq_id = n_seq_id.data();
    ubatch.seq_id   = seq_ids.data();
    full->apply_ubatch(dense_slots(0, n), ubatch);
}

h2o_kv_rows h2o_stream::k_rows(int32_t il) const {
    ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    const ggml_tensor * rot = cache->build_input_k_rot(ctx.get());

    return { storage(il)[0], id*sequence.layout.n_rows(), model.hparams.n_head_kv(il), model.hparams.n_embd_head_k(il), rot ? (uint32_t) rot->ne[0] : 0 };
}

h2o_kv_rows h2o_stream::v_rows(int32_t il) const {
    ggml_init_params params = { 4*ggml_tensor_overhead(), nullptr, true };
    ggml_context_ptr ctx { ggml_init(params) };

    const ggml_tensor * rot = cache->build_input_v_rot(ctx.get());

    return { storage(il)[1], id*sequence.layout.n_rows(), model.hparams.n_head_kv(il), model.hparams.n_embd_head_v(il), rot ? (uint32_t) rot->ne[0] : 0 };
}

// to dst [n_head_kv, n, n_embd]
void h2o_stream::get_stored_positions(size_t layer, h2o_cold_store::part_t part, const h2o_kv_rows & rows, uint32_t p0, uint32_t p1, uint32_t n, float * dst) const {
    if (p0 >= p1) {
        return;
    }
    const size_t n_row = (size_t) rows.n_head*rows.n_embd;

    std::vector<uint8_t> bytes((p1 - p0)*rows.t->nb[1]);
    std::vector<float>   found((p1 - p0)*n_row);

    sequence.cold->read_range(layer, part, p0, p1 - p0, bytes.data());
    rows.decode(bytes.data(), p1 - p0, found.data());
    for (size_t i = 0; i < p1 - p0; ++i) {
        for (size_t h = 0; h < rows.n_head; ++h) {
            std::copy_n(found.data() + i*n_row + h*rows.n_embd, rows.n_embd, dst + (h*n + i)*rows.n_embd);
        }
    }
}

void h2o_stream::get_positions(int32_t il, h2o_cold_store::part_t part, uint32_t p0, uint32_t p1, float * dst) const {
    const auto   rows   = part == h2o_cold_store::K ? k_rows(il) : v_rows(il);
    const auto & layer  = *sequence.layer(il);
    const auto & layout = sequence.layout;
    if (!layout.is_compact) {
        rows.get(p0, p1, dst);
        return;
    }

    const size_t M      = sequence.config.memory_size();
    const size_t n_embd = rows.n_embd;

    std::vector<float> kept(layer.n_head_kv*layout.n_rows()*n_embd);
    rows.get(0, layout.n_rows(), kept.data());

    std::fill_n(dst, layer.n_head_kv*(p1 - p0)*n_embd, NAN);
    for (size_t h = 0; h < layer.n_head_kv; ++h) {
        const auto copy = [&](uint32_t row, int64_t pos) {
            if (pos >= p0 && pos < p1) {
                std::copy_n(kept.data() + (h*layout.n_rows() + row)*n_embd, n_embd, dst + (h*(p1 - p0) + pos - p0)*n_embd);
            }
        };
        for (size_t i = 0; i < M; ++i) {
            copy(i, layer.memory[h*M + i]);
        }
        for (uint32_t pos = sequence.open_start(); pos < sequence.n_tokens(); ++pos) {
            copy(layout.row_of(pos), pos);
        }
    }
    if (sequence.cold) {
        get_stored_positions(layer.index, part, rows, p0, std::min(p1, sequence.open_start()), p1 - p0, dst);
    }
}
