// llama.cpp's functions to save and restore.

#include "llama-memory-h2o.h"

#include "h2o-record.h"

#include "llama-impl.h"
#include "llama-io.h"

#include <stdexcept>
#include <utility>

static void write_stream(llama_io_write_i & io, const h2o_stream & stream, llama_state_seq_flags flags) {
    if (stream.sequence.layout.is_compact) {
        // a part of it is not there to go back to
        h2o_record_write(io, stream.sequence.config, stream.sequence.record(stream.sequence.open_start(), /*with_kv =*/ true));
        if (stream.dense_cache) {
            stream.dense_cache->state_write(io, stream.id, flags);
        }
        return;
    }

    const bool partial = flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

    h2o_record_write(io, stream.sequence.config, stream.sequence.record(partial ? stream.sequence.open_start() : 0));
    if (const auto & tiles = stream.sequence.tiles) {
        h2o_lookups_write(io, *tiles);
        if (!partial) {
            h2o_text_write(io, *tiles);
        }
    }
    if (!partial && stream.key_index) {
        stream.key_index->write(io, stream.id, stream.sequence.n_tokens());
    }
    if (!partial) {
        stream.cache->state_write(io, stream.id, flags);
    }
}

// throws std::runtime_error, with nothing left, if a cache that was read does not hold these positions, in the rows of their numbers
static void check_cells(h2o_stream & stream, const llama_kv_cache & cache, uint32_t n_tokens) {
    const auto & cells = cache.get_cells(stream.id);
    for (uint32_t pos = 0; pos < n_tokens; ++pos) {
        if (cells.is_empty(pos) || cells.pos_get(pos) != (llama_pos) pos) {
            stream.clear(false);
            throw std::runtime_error("[h2o] this state is damaged: its K and V are of other positions");
        }
    }
}

static void read_stream(llama_io_read_i & io, h2o_stream & stream, llama_state_seq_flags flags) {
    const h2o_record record = h2o_record_read(io, stream.sequence);

    if (stream.sequence.layout.is_compact) {
        if (stream.dense_cache) {
            stream.clear(false);
            stream.dense_cache->state_read(io, stream.id, flags);
            check_cells(stream, *stream.dense_cache, record.n_tokens);
        }
        stream.sequence.restore(record);
        return;
    }

    const auto & tiles = stream.sequence.tiles;

    h2o_lookup_log log;
    uint32_t       log_start = 0;
    if (tiles) {
        log = h2o_lookups_read(io, *tiles, record.n_tokens, log_start);
    }

    if (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) {
        if (record.n_tokens > stream.sequence.n_tokens()) {
            throw std::runtime_error(format("[h2o] this partial state is of %u tokens, the sequence has %u", record.n_tokens, stream.sequence.n_tokens()));
        }
    } else {
        std::vector<int32_t> text;
        if (tiles) {
            text = h2o_text_read(io, record.n_tokens);
        }

        stream.clear(false);
        if (stream.key_index) {
            stream.key_index->read(io, stream.id, record.n_tokens);
        }
        stream.cache->state_read(io, stream.id, flags);

        check_cells(stream, *stream.cache, record.n_tokens);

        if (tiles) {
            tiles->assign_text(text);
        }
    }

    if (tiles) {
        tiles->assign_log(std::move(log), log_start);
    }
    stream.sequence.restore(record);
    stream.cache->seq_rm(stream.id, record.n_tokens, -1);
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
