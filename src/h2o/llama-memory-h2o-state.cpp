// llama.cpp's functions to save and restore.

#include "llama-memory-h2o.h"

#include "h2o-record.h"

#include "llama-impl.h"

#include <stdexcept>
#include <utility>

void llama_memory_h2o::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    const auto & sequence = stream.sequence;

    if (sequence.layout.is_compact) {
        // a part of it is not there to go back to
        h2o_record_write(io, sequence.config, sequence.record(sequence.open_start(), /*with_kv =*/ true));
        if (stream.dense_cache) {
            stream.dense_cache->state_write(io, seq_id, flags);
        }
        return;
    }

    const bool partial = flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

    h2o_record_write(io, sequence.config, sequence.record(partial ? sequence.open_start() : 0));
    if (const auto & tiles = sequence.tiles) {
        h2o_lookups_write(io, *tiles);
        if (!partial) {
            h2o_text_write(io, *tiles);
        }
    }
    if (!partial && stream.key_index) {
        stream.key_index->write(io, sequence.n_tokens());
    }
    if (!partial) {
        stream.cache->state_write(io, seq_id, flags);
    }
}

// every position in the row of its number
void llama_memory_h2o::check_cells(const llama_kv_cache & cache, uint32_t n_tokens) {
    const auto & cells = cache.get_cells(0);
    for (uint32_t pos = 0; pos < n_tokens; ++pos) {
        if (cells.is_empty(pos) || cells.pos_get(pos) != (llama_pos) pos) {
            clear(false);
            throw std::runtime_error("[h2o] this state is damaged: its K and V are of other positions");
        }
    }
}

void llama_memory_h2o::state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    auto & sequence = stream.sequence;

    const h2o_record record = h2o_record_read(io, sequence);

    if (sequence.layout.is_compact) {
        if (stream.dense_cache) {
            clear(false);
            stream.dense_cache->state_read(io, seq_id, flags);
            check_cells(*stream.dense_cache, record.n_tokens);
        }
        sequence.restore(record);
        return;
    }

    const auto & tiles = sequence.tiles;

    h2o_lookup_log log;
    uint32_t       log_start = 0;
    if (tiles) {
        log = h2o_lookups_read(io, *tiles, record.n_tokens, log_start);
    }

    if (flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) {
        if (record.n_tokens > sequence.n_tokens()) {
            throw std::runtime_error(format("[h2o] this partial state is of %u tokens, the sequence has %u", record.n_tokens, sequence.n_tokens()));
        }
    } else {
        std::vector<int32_t> text;
        if (tiles) {
            text = h2o_text_read(io, record.n_tokens);
        }

        clear(false);
        if (stream.key_index) {
            stream.key_index->read(io, record.n_tokens);
        }
        stream.cache->state_read(io, seq_id, flags);

        check_cells(*stream.cache, record.n_tokens);

        if (tiles) {
            tiles->assign_text(text);
        }
    }

    if (tiles) {
        tiles->assign_log(std::move(log), log_start);
    }
    sequence.restore(record);
    stream.cache->seq_rm(0, record.n_tokens, -1);
}
