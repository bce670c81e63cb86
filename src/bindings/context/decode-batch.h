#pragma once

#include "bindings/model/model.h"

#include "llama.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

// What one llama_decode appends: tokens, each of a sequence, or rows of embeddings. Positions follow what the sequences
// hold.
struct decode_batch {
    explicit decode_batch(std::vector<llama_token> tokens)
        : ids(std::move(tokens)), n_seq_id(ids.size(), 1), seq_id(ids.size()), outputs(ids.size(), 1) {
        for (auto & id : seq_id) {
            seq_ids.push_back(&id);
        }
    }

    // Rows [n, n_embd] in the place of the tokens, whose ids are the rows'. first: the position of the first one
    void set_embeddings(const float * data, uint32_t first, const model & mdl) {
        const auto   rope  = llama_model_rope_type(mdl.ptr.get());
        const size_t n_pos = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE ? 4 : 1;
        const size_t n     = ids.size();

        rows = data;
        pos.assign(n_pos*n, 0);
        for (size_t i = 0; i < n; ++i) {
            for (size_t j = 0; j < std::min<size_t>(n_pos, 3); ++j) { // as upstream has it for tokens
                pos[j*n + i] = first + i;
            }
        }
    }

    llama_batch get() {
        llama_batch batch = {};
        batch.n_tokens = ids.size();
        batch.token    = rows ? nullptr : ids.data();
        batch.embd     = const_cast<float *>(rows);
        batch.pos      = pos.empty() ? nullptr : pos.data();
        batch.n_seq_id = n_seq_id.data();
        batch.seq_id   = seq_ids.data();
        batch.logits   = outputs.data();
        return batch;
    }

    std::vector<llama_token>    ids;
    std::vector<int32_t>        n_seq_id;
    std::vector<llama_seq_id>   seq_id;
    std::vector<llama_seq_id *> seq_ids;
    std::vector<int8_t>         outputs;

    const float *          rows = nullptr; // not owned
    std::vector<llama_pos> pos;
};
