#pragma once

#include "h2o/llama/context.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

class llama_io_read_i;
class llama_io_write_i;

// Records of a sequence, its text and its lookups as bytes. What is read is checked: whatever the bytes are, the next step can be
// computed. Reading throws std::runtime_error, and the sequence is not changed.

// K and V are with it, or not, in the compact layout.
struct h2o_full_record {
    h2o_record                 record;
    std::vector<h2o_row_bytes> rows;
};

void            h2o_record_write(llama_io_write_i & io, const llama_h2o_kv & kv, const h2o_record & record, const std::vector<h2o_row_bytes> & rows);
h2o_full_record h2o_record_read (llama_io_read_i  & io, const llama_h2o_kv & kv, bool with_rows);

void                           h2o_history_write(llama_io_write_i & io, const llama_h2o_kv & kv);
std::map<uint32_t, h2o_record> h2o_history_read (llama_io_read_i  & io, const llama_h2o_kv & kv, const h2o_record & end);

void                           h2o_marks_write(llama_io_write_i & io, const llama_h2o_kv & kv);
std::map<uint32_t, h2o_record> h2o_marks_read (llama_io_read_i  & io, const llama_h2o_kv & kv, const h2o_record & end);

void                 h2o_text_write(llama_io_write_i & io, const h2o_tiles & text);
std::vector<int32_t> h2o_text_read (llama_io_read_i  & io, uint32_t n_tokens);

// what the queries before n_tokens have looked up
void           h2o_lookups_write(llama_io_write_i & io, const h2o_tiles & text, uint32_t n_tokens);
h2o_lookup_log h2o_lookups_read (llama_io_read_i  & io, const llama_h2o_kv & kv, uint32_t n_tokens, uint32_t & start);
