// llama.cpp's functions to save and restore.

#include "llama-memory-h2o.h"

#include "h2o-record.h"

#include "llama-impl.h"

#include <stdexcept>
#include <utility>

void llama_memory_h2o::state_write(llama_io_write_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) const {
    const bool partial = flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

    h2o_record_write(io, stream.sequence.config, stream.sequence.record(partial ? stream.sequence.open_start() : 0));
    if (!partial) {
        h2o_chunk_records_write(io, stream.sequence);
    }
    if (const auto & tiles = stream.sequence.tiles) {
        h2o_lookups_write(io, *tiles);
        if (!partial) {
            h2o_text_write(io, *tiles);
        }
    }
    if (!partial && stream.key_index) {
        stream.key_index->write(io, stream.sequence.n_tokens());
    }
    if (!partial) {
        stream.cache->state_write(io, seq_id, flags);
    }
}

void llama_memory_h2o::state_read(llama_io_read_i & io, llama_seq_id seq_id, llama_state_seq_flags flags) {
    const auto & tiles = stream.sequence.tiles;

    const bool partial = flags & LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

    const h2o_record record = h2o_record_read(io, stream.sequence);

    std::map<uint32_t, h2o_record> chunk_records;
    if (!partial) {
        chunk_records = h2o_chunk_records_read(io, stream.sequence, record.n_tokens);
    }

    h2o_lookup_log log;
    uint32_t       log_start = 0;
    if (tiles) {
        log = h2o_lookups_read(io, stream.sequence, record.n_tokens, log_start);
    }

    if (partial) {
        if (record.n_tokens > stream.sequence.n_tokens()) {
            throw std::runtime_error(format("[h2o] this partial state is of %u tokens, the sequence has %u", record.n_tokens, stream.sequence.n_tokens()));
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

        const auto & cells = stream.cache->get_cells(0);
        for (uint32_t pos = 0; pos < record.n_tokens; ++pos) {
            const uint32_t row = stream.sequence.layout->row_of(pos);
            if (cells.is_empty(row) || cells.pos_get(row) != (llama_pos) pos) {
                clear(false);
                throw std::runtime_error("[h2o] this state is damaged: its K and V are of other positions");
            }
        }

        if (tiles) {
            tiles->assign_text(text);
        }
    }

    if (tiles) {
        tiles->assign_log(std::move(log), log_start);
    }
    stream.sequence.restore(record);
    if (!partial) {
        stream.sequence.set_chunk_records(std::move(chunk_records));
    }
    stream.cache->seq_rm(0, record.n_tokens, -1);
}
