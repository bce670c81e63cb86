#pragma once

#include "h2o/sequence/sequence.h"

#include <cstdint>
#include <map>
#include <vector>

class llama_io_read_i;
class llama_io_write_i;

// A record, and the text with its lookups, as bytes, for llama.cpp's state functions.

void h2o_record_write(llama_io_write_i & io, const h2o_config & config, const h2o_record & record);

// Throws std::runtime_error if the bytes are not a record of a sequence like this one, which is not changed.
h2o_record h2o_record_read(llama_io_read_i & io, const h2o_sequence & sequence, bool with_kv);

// Those of chunks, as far as the sequence has kept them. Reading throws if they are not of a sequence of n_tokens tokens.
void                           h2o_chunk_records_write(llama_io_write_i & io, const h2o_sequence & sequence);
std::map<uint32_t, h2o_record> h2o_chunk_records_read (llama_io_read_i  & io, const h2o_sequence & sequence, uint32_t n_tokens);

void                 h2o_text_write(llama_io_write_i & io, const h2o_tiles & tiles);
std::vector<int32_t> h2o_text_read (llama_io_read_i  & io, uint32_t n_tokens);

// The log of what was looked up. Throws std::runtime_error if the bytes are not one of n_tokens tokens.
void           h2o_lookups_write(llama_io_write_i & io, const h2o_tiles & tiles, uint32_t n_tokens);
h2o_lookup_log h2o_lookups_read (llama_io_read_i  & io, const h2o_sequence & sequence, uint32_t n_tokens, uint32_t & start);
