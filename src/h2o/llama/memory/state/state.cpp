// llama.cpp's functions to save and restore.

#include "h2o/llama/memory/bytes.h"
#include "h2o/llama/memory/memory.h"
#include "h2o/llama/memory/state/record-io.h"
#include "h2o/store/cold/store.h"

#include "llama-impl.h"
#include "llama-io.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

// types and sizes of the rows of K and V, on which both sides must agree
static std::vector<uint64_t> kv_header(const h2o_kv_store & store) {
    std::vector<uint64_t> res;
    for (const auto & layer : store.layers()) {
        for (const ggml_tensor * t : { layer.k.t, layer.v.t }) {
            res.push_back(t->type);
            res.push_back(t->nb[1]);
        }
    }
    return res;
}

// Rows of every position: all in the full layout, the dense layers' in the compact one. f(tensor, offset, size)
template <typename F>
static void for_full_rows(const h2o_memory & context, llama_seq_id id, uint32_t n_tokens, F f) {
    const auto & store = context.store;
    for (const auto & [layer, part] : store.parts()) {
        if (layer->is_dense() || !store.layout.is_compact) {
            const auto rows = store.rows(*layer, part, id);
            f(rows.t, rows.row0*rows.t->nb[1], n_tokens*rows.t->nb[1]);
        }
    }
    if (context.index) {
        for (const auto & [il, t] : context.index->storage()) {
            f(t, id*context.index->n_rows*t->nb[1], n_tokens*t->nb[1]);
        }
    }
}

// chunk by chunk: it may be larger than memory
static void write_cold_store(llama_io_write_i & io, const h2o_cold_store & cold) {
    for (uint32_t chunk = 0; chunk < cold.n_chunks(); ++chunk) {
        for (size_t layer = 0; layer < cold.row_sizes.size(); ++layer) {
            for (const auto part : { H2O_K, H2O_V }) {
                const size_t n = cold.chunk_size*cold.row_sizes[layer][part];
                h2o_write_rows(io, chunk*cold.chunk_size, cold.chunk_size, n, [&] {
                    std::vector<uint8_t> rows(n);
                    cold.read_range(layer, part, chunk*cold.chunk_size, cold.chunk_size, rows.data());
                    io.write(rows.data(), n);
                });
            }
        }
    }
}

static void read_cold_store(llama_io_read_i & io, h2o_cold_store & cold, uint32_t n_chunks) {
    while (cold.n_chunks() < n_chunks) {
        cold.append([&](size_t layer, h2o_kv_part part) {
            std::vector<uint8_t> rows(cold.chunk_size*cold.row_sizes[layer][part]);
            io.read(rows.data(), rows.size());
            return rows;
        });
    }
}

static void write_sequence(llama_io_write_i & io, const llama_h2o_kv & kv) {
    const auto & context = kv.memory;
    const auto & state   = kv.state();

    const bool     compact = context.store.layout.is_compact;
    const uint32_t start   = state.open_start();

    const auto header = kv_header(context.store);
    io.write(header.data(), header.size()*sizeof(header[0]));

    auto record = state.record(state.n_tokens, compact ? start : 0);
    if (!context.caches.side.empty() && !io.is_counting()) {
        record.side = std::make_shared<const std::vector<uint8_t>>(context.caches.side.save(kv.id));
    }
    h2o_checkpoint_write(io, kv, record);
    if (io.is_counting()) {
        io.write(nullptr, context.caches.side.n_bytes(kv.id));
    }
    if (compact) {
        const auto rows = context.store.kept_rows(kv.id, start, state.n_tokens);
        for (const auto & r : rows.ranges()) {
            h2o_write_rows(io, r.pos, r.n, r.n_bytes(), [&] { io.write_tensor(r.t, r.offset(), r.n_bytes()); });
        }
    }
    h2o_checkpoints_write(io, kv);
    if (const auto * cold = context.store.cold(kv.id)) {
        write_cold_store(io, *cold);
    }
    for_full_rows(context, kv.id, state.n_tokens,
            [&](ggml_tensor * t, size_t offset, size_t size) { io.write_tensor(t, offset, size); });
}

static void read_sequence(llama_io_read_i & io, llama_h2o_kv & kv) {
    auto & context = kv.memory;
    auto & store   = context.store;

    const auto expected = kv_header(store);

    std::vector<uint64_t> header(expected.size());
    io.read(header.data(), header.size()*sizeof(header[0]));
    if (header != expected) {
        throw std::runtime_error("[h2o] this state has K and V of another type or size, is of another model, or was made "
                "without H2O");
    }

    h2o_saved_sequence saved;
    saved.record = h2o_checkpoint_read(io, kv);

    const uint32_t n_tokens = saved.record.n_tokens;

    std::optional<h2o_row_copies> rows;
    if (store.layout.is_compact) {
        rows = store.kept_rows(kv.id, saved.record.layers[0].n_built*context.config.chunk_size, n_tokens);
        rows->read([&](void * dst, size_t n) { io.read(dst, n); });
    }
    saved.checkpoints = h2o_checkpoints_read(io, kv, saved.record);

    if (!context.caches.side.empty() && !saved.record.side && n_tokens > 0) {
        throw std::runtime_error("[h2o] this state lacks the sliding windows and recurrent states of this model");
    }
    std::unique_ptr<h2o_cold_store> cold;
    if (store.cold(kv.id)) {
        cold = store.cold(kv.id)->empty_like();
        read_cold_store(io, *cold, saved.record.layers[0].n_built);
    }

    // From here on the sequence changes: it is empty if the rest cannot be read.
    try {
        context.clear(kv);
        if (cold) {
            store.cold(kv.id)->share(*cold);
        }
        for_full_rows(context, kv.id, n_tokens,
                [&](ggml_tensor * t, size_t offset, size_t size) { io.read_tensor(t, offset, size); });
        context.caches.fill_cells(kv.id, 0, n_tokens);
        if (const auto side = saved.record.side) {
            context.caches.side.load(kv.id, *side);
        }
        kv.sequence.restore(std::move(saved));
        store.go_back(kv.id, kv.state(), rows ? &*rows : nullptr, context.backends);
        context.caches.remove_cells(kv.id, n_tokens);
    } catch (...) {
        context.clear(kv);
        throw;
    }
}

using points = std::vector<std::pair<uint32_t, uint32_t>>;

static points points_of(const llama_h2o_kv & kv) {
    if (const uint32_t step = kv.memory.rewind_step(kv); step > 0 && kv.state().n_tokens >= step) {
        return { { step, kv.state().n_tokens } };
    }
    points res;
    for (const uint32_t pos : kv.past().state_points()) {
        if (pos < kv.state().n_tokens && !kv.memory.caches.side.empty() && !kv.past().side_of(pos)) {
            continue;
        }
        if (res.empty() || res.back().second + 1 != pos) {
            res.push_back({ pos, pos });
        }
        res.back().second = pos;
    }
    return res;
}

static points points_without_h2o(const llama_context * ctx, uint32_t n_tokens) {
    if (n_tokens == 0) {
        return {};
    }
    const auto *   model    = llama_get_model(ctx);
    const uint32_t n_swa    = llama_model_n_swa(model);
    const bool     is_whole = !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model) &&
            (n_swa == 0 || n_tokens <= n_swa);

    return { { is_whole ? 1 : n_tokens, n_tokens } };
}

// as llama_state_seq_get_data
static void write_state(llama_io_write_i & io, const llama_context * ctx, llama_seq_id seq_id) {
    constexpr uint32_t MAGIC = 0xaf143cd8; // io_magic of llama-context.cpp

    io.write(&MAGIC, sizeof(MAGIC));
    io.write(&seq_id, sizeof(seq_id));
    llama_get_memory(ctx)->state_write(io, seq_id, LLAMA_STATE_SEQ_FLAGS_NONE);
}

static uint32_t n_tokens_of(const llama_context * ctx, llama_seq_id seq_id) {
    return llama_memory_seq_pos_max(llama_get_memory(ctx), seq_id) + 1;
}

h2o_state_layout h2o_state_layout_of(const llama_context * ctx, llama_seq_id seq_id) {
    if (!llama_get_memory(ctx)) {
        return {};
    }
    const auto * kv = llama_get_h2o_kv_seq(ctx, seq_id);

    h2o_byte_writer notes(n_tokens_of(ctx, seq_id));
    write_state(notes, ctx, seq_id);
    return { notes.n_bytes(), notes.rows, kv ? points_of(*kv) : points_without_h2o(ctx, n_tokens_of(ctx, seq_id)) };
}

std::unique_ptr<h2o_state_copy> h2o_copy_state(llama_context * ctx, llama_seq_id seq_id, uint8_t * dst, size_t n_bytes) {
    llama_synchronize(ctx);
    auto res = std::make_unique<h2o_byte_writer>(n_tokens_of(ctx, seq_id), dst, n_bytes);
    write_state(*res, ctx, seq_id);
    return res;
}

// one sequence by its number, or all of them, which are preceded by how many they are
std::vector<llama_h2o_kv *> h2o_memory::sequences_of(llama_seq_id seq_id) const {
    std::vector<llama_h2o_kv *> res;
    for (const auto & kv : seqs) {
        if (seq_id < 0 || kv->id == seq_id) {
            res.push_back(kv.get());
        }
    }
    if (res.empty()) {
        throw std::runtime_error(format("[h2o] there is no sequence %d, this context has %zu", seq_id, seqs.size()));
    }
    return res;
}

void h2o_memory::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags /*flags*/) const {
    const auto kvs = sequences_of(seq_id);
    if (seq_id < 0) {
        const uint32_t n = kvs.size();
        io.write(&n, sizeof(n));
    }
    for (const auto * kv : kvs) {
        write_sequence(io, *kv);
    }
}

void h2o_memory::state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags /*flags*/) {
    const auto kvs = sequences_of(seq_id);
    if (seq_id < 0) {
        uint32_t n;
        io.read(&n, sizeof(n));
        if (n != kvs.size()) {
            throw std::runtime_error(format("[h2o] this state is of %u sequences, the context has %zu", n, kvs.size()));
        }
    }
    for (auto * kv : kvs) {
        read_sequence(io, *kv);
    }
}
