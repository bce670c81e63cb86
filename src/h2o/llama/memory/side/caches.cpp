#include "h2o/llama/memory/side/caches.h"

#include "h2o/llama/memory/bytes.h"
#include "h2o/store/buffers.h"

#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-model.h"

#include <algorithm>
#include <utility>

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

static size_t write_caches(const std::vector<llama_memory_i *> & caches, llama_seq_id seq_id, h2o_byte_writer io) {
    for (const auto * cache : caches) {
        cache->state_write(io, seq_id, 0);
    }
    io.next(SIZE_MAX);
    return io.n_bytes();
}

static size_t count_bytes(const std::vector<llama_memory_i *> & caches, llama_seq_id seq_id) {
    return write_caches(caches, seq_id, h2o_byte_writer(0));
}

static std::vector<uint8_t> bytes_of(const std::vector<llama_memory_i *> & caches, llama_seq_id seq_id) {
    std::vector<uint8_t> res(count_bytes(caches, seq_id));
    write_caches(caches, seq_id, h2o_byte_writer(0, res.data(), res.size()));
    return res;
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

size_t h2o_side_caches::n_bytes(llama_seq_id seq_id) const {
    return count_bytes(all(), seq_id);
}

std::vector<uint8_t> h2o_side_caches::save(llama_seq_id seq_id) const {
    return bytes_of(all(), seq_id);
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
    auto res = window && many_steps ? std::make_shared<const std::vector<uint8_t>>(bytes_of({ window.get() }, seq_id)) : nullptr;
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

bool h2o_side_caches::find_room(uint32_t n) {
    const auto & cells = recurrent->cells;

    const auto first = std::search_n(cells.begin(), cells.end(), n, true,
            [](const auto & cell, bool is_empty) { return cell.is_empty() == is_empty; });
    recurrent->head = first - cells.begin();

    // upstream searches from there, or from the first cell if there are many free ones before
    return first != cells.end() && recurrent->head <= recurrent->used + 2*n;
}

void h2o_side_caches::move_cell(uint32_t from, uint32_t to) {
    for (const auto * tensors : { &recurrent->r_l, &recurrent->s_l, &recurrent->p_l }) {
        for (auto * t : *tensors) {
            if (t) {
                h2o_copy_rows(t, from, t, to, 1);
            }
        }
    }
    auto & cells = recurrent->cells;

    std::swap(cells[to].pos,    cells[from].pos);
    std::swap(cells[to].seq_id, cells[from].seq_id);
    cells[to]  .src = to;
    cells[from].src = -1;
    for (const auto id : cells[to].seq_id) {
        cells[id].tail = to;
    }
}

void h2o_side_caches::make_room(const std::vector<llama_seq_id> & seq_ids) {
    if (!recurrent || find_room(seq_ids.size())) {
        return;
    }
    // others' states first, then these: two steps later these cells are free for them again
    const auto & cells = recurrent->cells;

    std::vector<llama_seq_id> order;
    for (const bool is_of_step : { false, true }) {
        for (const auto & cell : cells) {
            const bool is_one = std::any_of(seq_ids.begin(), seq_ids.end(),
                    [&](llama_seq_id id) { return cell.has_seq_id(id); });
            if (!cell.is_empty() && is_one == is_of_step) {
                order.push_back(*cell.seq_id.begin());
            }
        }
    }
    for (uint32_t i = 0; i < order.size(); ++i) {
        if (cells[order[i]].tail == (int32_t) i) {
            continue;
        }
        if (!cells[i].is_empty()) {
            move_cell(i, std::find_if(cells.begin(), cells.end(), [](const auto & c) { return c.is_empty(); }) -
                    cells.begin());
        }
        move_cell(cells[order[i]].tail, i);
    }
    find_room(seq_ids.size());
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
        load_window(to, bytes_of({ window.get() }, from));
    }
}
