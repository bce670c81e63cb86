// llama.cpp's functions to save and restore.

#include "h2o/llama/memory.h"

#include "h2o/sequence/record.h"

#include "llama-h2o.h"
#include "llama-impl.h"
#include "llama-io.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

// types and sizes of the rows of K and V, on which both sides must agree
static std::vector<uint64_t> kv_header(const h2o_stream & stream) {
    std::vector<uint64_t> res;
    for (const auto * cache : { stream.cache.get(), stream.dense_cache.get() }) {
        for (const uint32_t il : cache ? cache->get_layer_ids() : std::vector<uint32_t>()) {
            for (const ggml_tensor * t : stream.storage(il)) {
                res.push_back(t->type);
                res.push_back(t->nb[1]);
            }
        }
    }
    return res;
}

// chunk by chunk: it may be larger than memory
static void write_cold_store(llama_io_write_i & io, const h2o_cold_store & cold) {
    for (uint32_t chunk = 0; chunk < cold.n_chunks(); ++chunk) {
        for (size_t layer = 0; layer < cold.row_sizes.size(); ++layer) {
            for (const auto part : { h2o_cold_store::K, h2o_cold_store::V }) {
                const auto rows = cold.chunk_rows(chunk, layer, part);
                io.write(rows.data(), rows.size());
            }
        }
    }
}

static void read_cold_store(llama_io_read_i & io, h2o_cold_store & cold, uint32_t n_chunks) {
    while (cold.n_chunks() < n_chunks) {
        cold.append([&](size_t layer, h2o_cold_store::part_t part) {
            std::vector<uint8_t> rows(cold.chunk_size*cold.row_sizes[layer][part]);
            io.read(rows.data(), rows.size());
            return rows;
        });
    }
}

static void write_stream(llama_io_write_i & io, const h2o_stream & stream, llama_state_seq_flags flags) {
    const auto & sequence = stream.sequence;

    // of a compact layout rows may have moved when it is gone back to: the record has them
    const bool compact = sequence.layout.is_compact;
    const bool partial = flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
    const bool no_rows = partial && (flags & LLAMA_H2O_STATE_SEQ_FLAGS_NO_ROWS);

    const uint32_t n_tokens = partial ? std::clamp(stream.state_end, sequence.open_start(), sequence.n_tokens()) : sequence.n_tokens();

    if (!partial) {
        const auto header = kv_header(stream);
        io.write(header.data(), header.size()*sizeof(header[0]));
    }
    h2o_record_write(io, sequence.config,
            sequence.record_until(n_tokens, partial || compact ? sequence.open_start() : 0, /*with_kv =*/ compact && !no_rows));
    if (!partial) {
        h2o_chunk_records_write(io, sequence);
    }
    if (const auto & tiles = sequence.tiles) {
        h2o_lookups_write(io, *tiles, n_tokens);
        if (!partial) {
            h2o_text_write(io, *tiles);
        }
    }
    if (sequence.cold && !partial) {
        write_cold_store(io, *sequence.cold);
    }
    if (!partial && stream.key_index) {
        stream.key_index->write(io, stream.id, sequence.n_tokens());
    }
    if (const auto * cache = stream.full_cache(); cache && !partial) {
        for (const uint32_t il : cache->get_layer_ids()) {
            for (ggml_tensor * t : stream.storage(il)) {
                io.write_tensor(t, stream.id*t->nb[2], sequence.n_tokens()*t->nb[1]);
            }
        }
    }
}

// whether the rows of the cache are those of the record
static bool has_rows_of(const h2o_sequence & sequence, const h2o_record & record) {
    return std::all_of(sequence.layers.begin(), sequence.layers.end(), [&](const h2o_layer & layer) {
        const auto & r = record.layers[layer.index];
        return layer.n_built == r.n_built && layer.memory == r.memory;
    });
}

static void read_stream(llama_io_read_i & io, h2o_stream & stream, llama_state_seq_flags flags) {
    auto & sequence = stream.sequence;

    const auto & tiles = sequence.tiles;

    const bool compact = sequence.layout.is_compact;
    const bool partial = flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
    const bool no_rows = partial && (flags & LLAMA_H2O_STATE_SEQ_FLAGS_NO_ROWS);

    if (!partial) {
        const auto expected = kv_header(stream);

        std::vector<uint64_t> header(expected.size());
        io.read(header.data(), header.size()*sizeof(header[0]));
        if (header != expected) {
            throw std::runtime_error("[h2o] this state has K and V of another type or size, is of another model, or was made without H2O");
        }
    }

    const h2o_record record = h2o_record_read(io, sequence, /*with_kv =*/ compact && !no_rows);

    std::map<uint32_t, h2o_record> chunk_records;
    if (!partial) {
        chunk_records = h2o_chunk_records_read(io, sequence, record.n_tokens);
    }

    h2o_lookup_log log;
    uint32_t       log_start = 0;
    if (tiles) {
        log = h2o_lookups_read(io, sequence, record.n_tokens, log_start);
    }

    if (partial) {
        if (record.n_tokens > sequence.n_tokens()) {
            throw std::runtime_error(format("[h2o] this partial state is of %u tokens, the sequence has %u", record.n_tokens, sequence.n_tokens()));
        }
        if (compact && no_rows && !has_rows_of(sequence, record)) {
            throw std::runtime_error("[h2o] the rows of this partial state have moved");
        }
        if (sequence.cold && record.layers[0].n_built > sequence.cold->n_chunks()) {
            throw std::runtime_error("[h2o] chunks of this partial state are not in the cold store any more");
        }
    } else {
        std::vector<int32_t> text;
        if (tiles) {
            text = h2o_text_read(io, record.n_tokens);
        }

        std::optional<h2o_cold_store> cold;
        if (sequence.cold) {
            read_cold_store(io, cold.emplace(sequence.cold->empty_like()), record.layers[0].n_built);
        }

        stream.clear(false);
        if (cold) {
            sequence.cold->share(*cold);
        }
        if (stream.key_index) {
            stream.key_index->read(io, stream.id, record.n_tokens);
        }
        if (auto * cache = stream.full_cache()) {
            for (const uint32_t il : cache->get_layer_ids()) {
                for (ggml_tensor * t : stream.storage(il)) {
                    io.read_tensor(t, stream.id*t->nb[2], record.n_tokens*t->nb[1]);
                }
            }
        }
        stream.fill_cells(record.n_tokens);

        if (tiles) {
            tiles->assign_text(text);
        }
    }

    if (tiles) {
        tiles->assign_log(std::move(log), log_start);
    }
    sequence.restore(record);
    if (!partial) {
        sequence.set_chunk_records(std::move(chunk_records));
    }
    stream.remove_cells(record.n_tokens);
}

// one sequence by its number, or all of them, which are preceded by how many they are
void llama_memory_h2o::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    if (seq_id >= 0) {
        write_stream(io, stream(seq_id), flags);
        return;
    }

    const uint32_t n = streams.size();
    io.write(&n, sizeof(n));
    for (const auto & stream : streams) {
        write_stream(io, *stream, flags);
    }
}

void llama_memory_h2o::state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    if (seq_id >= 0) {
        read_stream(io, stream(seq_id), flags);
        return;
    }

    uint32_t n;
    io.read(&n, sizeof(n));
    if (n != streams.size()) {
        throw std::runtime_error(format("[h2o] this state is of %u sequences, the context has %zu", n, streams.size()));
    }
    for (auto & stream : streams) {
        read_stream(io, *stream, flags);
    }
}
