#pragma once

#include "llama.h"

#include <cstddef>
#include <string>
#include <vector>

// llama_state_seq_load_file(), throws std::runtime_error; then the sequence may be anything. Returns the bytes read.
LLAMA_API size_t h2o_load_seq_file(llama_context * ctx, const std::string & path, llama_seq_id seq_id,
        std::vector<llama_token> & tokens);
