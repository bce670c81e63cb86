#include "h2o/llama/side/caches.h"

#include "h2o/llama/side/bytes.h"

#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-model.h"

#include <algorithm>

// as llama_kv_cache_iswa without swa_full, which would keep the whole text
static uint32_t window_size(const llama_hparams & hparams, const llama_cparams & cparams) {
    return GGML_PAD(std::min(cparams.n_ctx_seq, hparams.n_swa + cparams.n_ubatch), 256);
}

h2o_side_caches::h2o_side_caches(const llama_model & model, const llama_memory_params & params,
        const llama_cparams & cparams, const h2o_model_layers & layers)
    : n_seq_max(cparams.n_seq_max) {
    const auto & hparams = model.hparams;

    if (hparams.swa_type != LLAMA_SWA_TYPE_NONE && cparams.n_batch > 0) {
        window = std::make_unique<llama_kv_cache>(model, hparams, params.type_k, params.type_v,
                /*v_trans =*/ !cparams.flash_attn,
                cparams.offload_kqv, /*unified =*/ false, window_size(hparams, cparams), n_seq_max, /*n_pad =*/ 1,
                hparams.n_swa, hparams.swa_type, nullptr,
                        [&](int32_t il) { return hparams.is_swa(il) && layers.has_attention(il); },
                layers.reuse, nullptr);

        n_swa    = hparams.n_swa;
        swa_type = hparams.swa_type;
    }
    if (layers.recurrent && cparams.n_batch > 0) {
        recurrent = std::make_unique<llama_memory_recurrent>(model, GGML_TYPE_F32, GGML_TYPE_F32, cparams.offload_kqv,
                2*n_seq_max, 2*n_seq_max, /*n_rs_seq =*/ 0, layers.recurrent);
    }
}

std::vector<uint8_t> h2o_side_caches::save_window(llama_seq_id seq_id) const {
    h2o_byte_writer io;
    window->state_write(io, seq_id, 0);
    return std::move(io.bytes);
}

void h2o_side_caches::load_window(llama_seq_id seq_id, const std::vector<uint8_t> & saved) {
    h2o_byte_reader io(saved);
    window->seq_rm(seq_id, -1, -1);
    window->state_read(io, seq_id, 0);
}

std::vector<llama_memory_i *> h2o_side_caches::all() const {
    std::vector<llama_memory_i *> res;
    if (window) {
        res.push_back(window.get());
    }
    if (recurrent) {
        res.push_back(recurrent.get());
    }
    return res;
}

std::vector<uint8_t> h2o_side_caches::save(llama_seq_id seq_id, bool counts) const {
    h2o_byte_writer io(counts);
    for (auto * cache : all()) {
        cache->state_write(io, seq_id, 0);
    }
    io.bytes.shrink_to_fit(); // it grew by doubling
    return std::move(io.bytes);
}

void h2o_side_caches::load(llama_seq_id seq_id, const std::vector<uint8_t> & saved) {
    clear(seq_id);

    h2o_byte_reader io(saved);
    for (auto * cache : all()) {
        cache->state_read(io, seq_id, 0);
    }
}

std::shared_ptr<const std::vector<uint8_t>> h2o_side_caches::keep(llama_seq_id seq_id, bool many_steps) {
    // the rows that a call's first step overwrites are outside the window of the token before it
    auto res = window && many_steps ? std::make_shared<const std::vector<uint8_t>>(save_window(seq_id)) : nullptr;
    if (recurrent) {
        recurrent->seq_cp(seq_id, spare(seq_id), -1, -1);
    }
    return res;
}

void h2o_side_caches::drop_spare(llama_seq_id seq_id) {
    if (recurrent) {
        recurrent->seq_rm(spare(seq_id), -1, -1);
    }
}

void h2o_side_caches::go_back(llama_seq_id seq_id, uint32_t n_tokens, const std::vector<uint8_t> * windows) {
    if (windows) {
        load_window(seq_id, *windows);
    } else {
        rewind(seq_id, n_tokens);
    }
    if (recurrent) {
        recurrent->seq_rm(seq_id, -1, -1);
        recurrent->seq_cp(spare(seq_id), seq_id, -1, -1);
    }
    drop_spare(seq_id);
}

bool h2o_side_caches::can_rewind(llama_seq_id seq_id, uint32_t pos) const {
    if (recurrent && recurrent->seq_pos_max(seq_id) + 1 != (llama_pos) pos) {
        return false;
    }
    const llama_pos first = window ? window->seq_pos_min(seq_id) : -1;

    return first <= 0 || llama_hparams::is_masked_swa(n_swa, swa_type, first - 1, pos);
}

void h2o_side_caches::rewind(llama_seq_id seq_id, uint32_t pos) {
    if (window) {
        window->seq_rm(seq_id, pos, -1);
    }
}

void h2o_side_caches::clear(llama_seq_id seq_id) {
    for (auto * cache : all()) {
        cache->seq_rm(seq_id, -1, -1);
    }
}

void h2o_side_caches::copy(llama_seq_id from, llama_seq_id to) {
    if (recurrent) {
        recurrent->seq_cp(from, to, -1, -1);
    }
    if (window) { // upstream's copy waits for the next decode
        load_window(to, save_window(from));
    }
}
