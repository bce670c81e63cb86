#pragma once

#include "h2o/text/piece.h"

#include "llama.h"

// Rows of a sequence come to where another text has their tokens, see h2o_memory::arrange. Throws std::exception.
void h2o_arrange(llama_context * ctx, llama_seq_id seq_id, uint32_t n_kept, const std::vector<h2o_piece> & pieces);
