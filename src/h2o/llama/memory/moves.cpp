// Rows of a sequence are removed, and come to other positions.

#include "h2o/llama/memory/moves.h"

#include "h2o/llama/memory/memory.h"

#include "llama-impl.h"

#include <algorithm>
#include <exception>
#include <stdexcept>

static constexpr int64_t END = INT32_MAX; // of all positions

// what a sequence has at the positions [p0, p1), its end and unseen rows, moved by `shift`
static std::vector<h2o_piece> pieces_between(const h2o_sequence_state & state, int64_t p0, int64_t p1,
        int64_t shift = 0) {
    std::vector<h2o_piece> res;
    const auto add = [&](int64_t first, int64_t end) {
        first = std::max({ first, p0, -shift });
        end   = std::min(end, p1);
        if (first < end) {
            res.push_back({ (uint32_t) first, (uint32_t) (end - first), (uint32_t) (first + shift) });
        }
    };
    add(0, state.n_tokens);
    for (const auto & [first, end] : state.unseen) {
        add(first, end);
    }
    return res;
}

static std::vector<h2o_piece> joined(const std::vector<std::vector<h2o_piece>> & parts) {
    std::vector<h2o_piece> res;
    for (const auto & part : parts) {
        res.insert(res.end(), part.begin(), part.end());
    }
    std::sort(res.begin(), res.end(), [](const h2o_piece & a, const h2o_piece & b) { return a.to < b.to; });
    return res;
}

std::string h2o_memory::move_refusal(const llama_h2o_kv & kv) const {
    const auto & state = kv.state();
    const char * reason =
        config.evict          ? "evict drops most of them" :
        config.ranks()        ? "heavy_budget ranks them by their text" :
        caches.side.recurrent ? "this model has recurrent layers, whose state is that of the text's end" :
        caches.side.window    ? "this model has sliding windows, which keep the text's end alone" :
        intra                 ? "two_phase reads each token twice" :
        !has_ropes            ? "their keys are not rotated by plain RoPE, or not where they are" :
        state.is_scored       ? "the scores of their text are recorded" :
        state.is_by_hand      ? "a memory set was replaced by hand" : nullptr;

    return reason ? format("[h2o] rows of sequence %d cannot move: %s", kv.id, reason) : "";
}

void h2o_memory::arrange(llama_h2o_kv & kv, uint32_t n_kept, const std::vector<h2o_piece> & pieces) {
    if (const auto refusal = move_refusal(kv); !refusal.empty()) {
        throw std::runtime_error(refusal);
    }
    const auto & state = kv.state();

    std::vector<h2o_piece> moved;
    uint32_t               end = n_kept;
    bool                   ok  = n_kept <= state.n_tokens;
    for (const auto & piece : pieces) {
        const auto rows = pieces_between(state, piece.from, (int64_t) piece.from + piece.n);

        ok  = ok && piece.n > 0 && rows.size() == 1 && rows[0].n == piece.n && piece.to >= end &&
            piece.n <= store.layout.n_positions() - std::min(piece.to, store.layout.n_positions());
        end = piece.to + piece.n;
        if (piece.to != piece.from) {
            moved.push_back(piece);
        }
    }
    if (!ok) {
        throw std::invalid_argument(format("[h2o] pieces of sequence %d must have rows, and come one after the other to "
                "positions from %u to %u", kv.id, n_kept, store.layout.n_positions()));
    }
    try {
        for (auto * backend : backends) {
            ggml_backend_synchronize(backend);
        }
        store.move(kv.id, moved, index.get(), backends);
        kv.sequence.arrange(n_kept, pieces);
        caches.remove_cells(kv.id, n_kept);
        caches.fill_cells(kv.id, n_kept, state.n_tokens);
    } catch (...) { // a part of it has moved
        LLAMA_LOG_ERROR("%s: sequence %d is empty now\n", __func__, kv.id);
        clear(kv);
        throw;
    }
}

void h2o_arrange(llama_context * ctx, llama_seq_id seq_id, uint32_t n_kept, const std::vector<h2o_piece> & pieces) {
    auto * kv = llama_get_h2o_kv_seq(ctx, seq_id);
    if (!kv) {
        throw std::invalid_argument("[h2o] rows move only with H2O");
    }
    kv->memory.arrange(*kv, n_kept, pieces);
}

// changes a sequence, or all: -1; false, with the reason logged, if one cannot be changed
template <typename F>
static bool change(const h2o_memory & memory, llama_seq_id seq_id, const F & f) {
    bool res = true;
    for (auto & kv : memory.sequences()) {
        try {
            if (seq_id < 0 || seq_id == kv->id) {
                f(*kv);
            }
        } catch (const std::exception & e) { // it cannot move, or a device or a file cannot be read
            LLAMA_LOG_ERROR("%s\n", e.what());
            res = false;
        }
    }
    return res;
}

bool h2o_memory::seq_rm(llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    return change(*this, seq_id, [&](llama_h2o_kv & kv) { remove(kv, std::max(p0, 0), p1 < 0 ? END : p1); });
}

void h2o_memory::remove(llama_h2o_kv & kv, int64_t p0, int64_t p1) {
    const uint32_t n_tokens = kv.state().n_tokens;
    const uint32_t n_kept   = std::min<int64_t>(p0, n_tokens);

    const auto left = joined({ pieces_between(kv.state(), n_kept, p0), pieces_between(kv.state(), p1, END) });
    if (p0 < p1 && !left.empty()) {
        arrange(kv, n_kept, left);
    } else if (p0 < p1) {
        kv.sequence.drop_unseen(END);
        cut(kv, n_kept);
    }
}

void h2o_memory::cut(llama_h2o_kv & kv, uint32_t pos) {
    if (pos == 0) {
        clear(kv);
        return;
    }
    if (pos >= kv.state().n_tokens) {
        return;
    }
    if (!can_rewind(kv, pos)) {
        throw std::runtime_error(format("[h2o] positions of sequence %d can be removed from %u on, not from %u", kv.id,
                rewind_limit(kv), pos));
    }
    const auto checkpoint = kv.past().checkpoint_of(pos);
    const auto rows       = store.moved_rows(kv.id, checkpoint);

    try {
        if (caches.side.can_rewind(kv.id, pos)) {
            caches.side.rewind(kv.id, pos);
        } else {
            caches.side.load(kv.id, *kv.past().side_of(pos));
        }
        go_back(kv, checkpoint, rows ? &*rows : nullptr, /*moves_keys =*/ true);
    } catch (...) { // part of it has gone back
        LLAMA_LOG_ERROR("%s: sequence %d is empty now\n", __func__, kv.id);
        clear(kv);
        throw;
    }
}

void h2o_memory::seq_add(llama_seq_id seq_id, llama_pos p0, llama_pos p1, llama_pos shift) {
    change(*this, seq_id, [&](llama_h2o_kv & kv) {
        const int64_t first = std::max(p0, 0), last = p1 < 0 ? END : p1;

        const auto moved = pieces_between(kv.state(), first, last, shift);
        if (shift == 0 || moved.empty()) {
            return;
        }
        const int64_t begin  = moved.front().to;
        const int64_t end    = moved.back().to + moved.back().n;
        const int64_t n_kept = std::min({ (int64_t) kv.state().n_tokens, first, begin });

        // the others stay, unless these come to where they are
        const auto stay = [&](int64_t from, int64_t to) { return pieces_between(kv.state(), from, to); };
        arrange(kv, n_kept, joined({ moved, stay(n_kept, std::min(first, begin)),
                stay(std::min(last, end), std::max(first, begin)), stay(std::max(last, end), END) }));
    });
}

void h2o_memory::seq_div(llama_seq_id seq_id, llama_pos p0, llama_pos p1, int d) {
    if (d != 1 && p0 != p1) {
        LLAMA_LOG_ERROR("%s: H2O cannot divide positions (sequence %d)\n", __func__, seq_id);
    }
}
