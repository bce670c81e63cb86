#pragma once

#include "h2o/llama/memory/memory.h"

#include <cstdint>
#include <map>

class llama_io_read_i;
class llama_io_write_i;

// Checkpoints of a sequence as bytes. Reading checks them: whatever the bytes are, the next
// step can be computed. It throws std::runtime_error, and the sequence is not changed.

void           h2o_checkpoint_write(llama_io_write_i & io, const llama_h2o_kv & kv, const h2o_checkpoint & checkpoint);
h2o_checkpoint h2o_checkpoint_read (llama_io_read_i  & io, const llama_h2o_kv & kv);

// The kept checkpoints of a sequence. end: its current one
void h2o_checkpoints_write(llama_io_write_i & io, const llama_h2o_kv & kv);
std::map<uint32_t, h2o_checkpoint> h2o_checkpoints_read(llama_io_read_i & io, const llama_h2o_kv & kv,
        const h2o_checkpoint & end);
