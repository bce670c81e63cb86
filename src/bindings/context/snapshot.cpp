// The sequence's past: going back in it, taking it along.

#include "bindings/context/context.h"

#include "bindings/llama-call.h"
#include "h2o/llama/memory/moves.h"

#include <algorithm>

bool context::can_rewind(uint32_t pos) const {
    if (pos == 0 || pos == n_tokens()) {
        return true;
    }
    if (kv) {
        return kv->memory.can_rewind(*kv, pos);
    }
    // A recurrent model has one state, that of the end. Of a sliding window nothing is dropped (swa_full), but by a state.
    if (llama_model_is_recurrent(mdl->ptr.get()) || llama_model_is_hybrid(mdl->ptr.get())) {
        return false;
    }
    const int64_t n_swa = llama_model_n_swa(mdl->ptr.get());
    return n_swa == 0 || llama_memory_seq_pos_min(llama_get_memory(get()), seq_id) <= std::max<int64_t>(0, pos - n_swa);
}

void context::rewind(uint32_t pos) {
    drop_draft();
    if (pos >= n_tokens()) {
        return;
    }

    llama_call call(verbose);
    if (!llama_call::run("[Llama.rewind] ", [&] { return llama_memory_seq_rm(llama_get_memory(get()), seq_id, pos, -1); })) {
        throw h2o_error("[Llama.rewind] llama.cpp cannot take tokens back: " + call.reason());
    }
    sync_text();
}

void context::arrange(uint32_t n_kept, const std::vector<std::array<uint32_t, 3>> & pieces, const token_array & ids) {
    drop_draft();
    std::vector<h2o_piece> moves;
    for (const auto & [from, n, to] : pieces) {
        moves.push_back({ from, n, to });
    }
    arranged.assign(ids.data(), ids.data() + ids.size());
    text.resize(std::min<size_t>(text.size(), n_kept));

    llama_call::run("[Llama.reuse] ", [&] {
        without_gil no_gil;
        h2o_arrange(get(), seq_id, n_kept, moves);
    });
    sync_text();
}

context::token_array context::tokens() const {
    return token_array(n_tokens(), text.data());
}

py::bytes context::get_state() {
    drop_draft();

    llama_call call(verbose);

    const size_t size = llama_call::run("[Llama.snapshot] ", [&] { return llama_state_seq_get_size(get(), seq_id); });

    auto res = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, size));
    if (!res) {
        throw py::error_already_set(); // MemoryError
    }
    auto * dst = (uint8_t *) PyBytes_AS_STRING(res.ptr());

    const size_t n_written = llama_call::run("[Llama.snapshot] ", [&] {
        without_gil no_gil;
        return llama_state_seq_get_data(get(), dst, size, seq_id);
    });
    if (size == 0 || n_written != size) {
        throw h2o_error("[Llama.snapshot] llama.cpp cannot save this sequence: " + call.reason());
    }
    return res;
}

void context::write_state(const py::bytes & state) {
    const auto * src = (const uint8_t *) PyBytes_AS_STRING(state.ptr());
    const size_t n   = PyBytes_GET_SIZE(state.ptr());

    llama_call call(verbose);

    const size_t n_read = llama_call::run("[Llama.restore] the state is damaged: ", [&] {
        without_gil no_gil;
        return llama_state_seq_set_data(get(), src, n, seq_id);
    });
    if (n_read != n) {
        throw h2o_error("[Llama.restore] llama.cpp refuses the state: " + (n_read > 0 ? "it has bytes left over" : call.reason()));
    }
}

void context::restore(const py::bytes & state, const token_array & tokens) {
    drop_draft();

    const size_t   n = tokens.size();
    llama_memory_t memory = llama_get_memory(get());

    const py::bytes before = n_tokens() > 0 ? get_state() : py::bytes();
    try {
        clear_memory(/*data =*/ false);
        if (n > 0) {
            write_state(state);
        }
        if (llama_memory_seq_pos_max(memory, seq_id) != (llama_pos) n - 1 || (n > 0 && llama_memory_seq_pos_min(memory, seq_id) < 0)) {
            throw h2o_error("[Llama.restore] the state is damaged: it is not of " + std::to_string(n) + " tokens");
        }
    } catch (...) {
        clear_memory(/*data =*/ false);
        try {
            if (PyBytes_GET_SIZE(before.ptr()) > 0) {
                write_state(before);
            }
        } catch (const h2o_error &) { // the first error is thrown; the sequence is empty
            clear_memory(/*data =*/ false);
            sync_text();
        }
        throw;
    }

    text.assign(tokens.data(), tokens.data() + n);
}

void context::set_state(const py::bytes & state) {
    drop_draft();
    text.clear();
    arranged.clear();
    try {
        write_state(state);
    } catch (...) {
        sync_text();
        throw;
    }
    sync_text();
}
