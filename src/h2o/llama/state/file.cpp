#include "h2o/llama/state/file.h"

#include "llama-context.h"

#include <algorithm>
#include <stdexcept>

size_t h2o_load_seq_file(llama_context * ctx, const std::string & path, llama_seq_id seq_id,
        std::vector<llama_token> & tokens) {
    ctx->synchronize();

    const auto check = [](size_t n_bytes) {
        if (n_bytes == 0) {
            throw std::runtime_error("this file does not hold a slot, or was written by another version");
        }
        return n_bytes;
    };
    size_t n_tokens = 0;
    check(ctx->state_seq_load_file(seq_id, path.c_str(), nullptr, 0, &n_tokens));

    tokens.resize(std::max<size_t>(1, n_tokens)); // NULL asks for their number
    const size_t res = check(ctx->state_seq_load_file(seq_id, path.c_str(), tokens.data(), tokens.size(), &n_tokens));
    tokens.resize(n_tokens);
    return res;
}
