// Drafts: tokens computed ahead of the sequence. Each becomes part of it or is undone.

#include "bindings/context/context.h"

#include "bindings/llama-call.h"
#include "h2o/text/draft.h"

#include <algorithm>

// A new chunk builds the memory set of the previous one, and no draft undoes that: only the first token of a call may
// begin a chunk. Where generated tokens are scored, a limited number of them can be undone.
uint32_t context::max_draft() const {
    uint32_t res = llama_n_batch(get()) - 1;
    if (kv) {
        const llama_h2o_info info = llama_h2o_kv_info(kv);
        res = std::min({ res, info.max_draft, info.chunk_size - 1 - n_tokens()%info.chunk_size });
    }
    return res;
}

context::token_array context::find_draft(llama_token token, uint32_t n_min, uint32_t n_max) {
    drop_draft();

    text.push_back(token);
    std::vector<llama_token> res = h2o_draft(text, n_min, std::min(n_max, max_draft()));
    text.pop_back();

    // generation ends there, or an image begins, whose rows have no token ids
    res.erase(
        std::find_if(res.begin(), res.end(), [&](llama_token t) { return t < 0 || llama_vocab_is_eog(mdl->vocab, t); }),
        res.end());
    if (res.size() < n_min) {
        res.clear();
    }
    return token_array(res.size(), res.data());
}

bool context::accept_draft(llama_token token) {
    if (n_ahead == 0 || text[n_tokens()] != token) {
        return false;
    }
    n_ahead--;
    return true;
}

void context::drop_draft() {
    if (n_ahead == 0) {
        return;
    }
    const uint32_t n_keep = n_tokens();

    llama_call call(verbose);
    if (!llama_memory_seq_rm(llama_get_memory(get()), seq_id, n_keep, -1)) {
        throw h2o_error("[Llama.generate] llama.cpp cannot take back a draft: " + call.reason());
    }
    n_ahead = 0;
    sync_text();
}
