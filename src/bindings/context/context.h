#pragma once

#include "bindings/context/callbacks.h"
#include "bindings/model/model.h"

#include "llama-h2o.h"

#include <pybind11/numpy.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

// A sequence of a llama_context, which the others share. Not thread safe: their owner in Python lets one thread in at a time.
class context {
public:
    using token_array = py::array_t<llama_token, py::array::c_style>;
    using rows_array  = py::array_t<float, py::array::c_style>;

    // The first sequence of a new llama_context with the model's adapters. With params.embeddings the hidden states
    // [n_embd] of the last layer are in the place of logits, and the model may be an encoder, which has no memory.
    context(std::shared_ptr<model> mdl, llama_context_params params, bool record, bool profile, bool verbose);

    // another one, up to n_seq_max - 1
    context(const context & first, llama_seq_id seq_id);

    // Appends prompt tokens or generated tokens by one llama_decode. If `rows` [n, n_embd] is not empty, the model reads these
    // embeddings, and each id is the h2o_embedding_id() of its row. `logits` has a row for each token, one row for the last
    // token, or none. With H2O progress(n_done) is called after every chunk. If it raises, or Ctrl-C is pressed, the
    // call is undone. The last n_draft tokens are a draft: the sequence ends before them until they are accepted.
    void decode(const token_array & ids, const rows_array & rows, rows_array & logits, uint32_t dense_tail,
            bool generated, py::object progress, uint32_t n_draft);

    // Appends a generated token to each of several different sequences, which share a llama_context, by a single
    // llama_decode. logits has a row for each.
    static void decode_each(const std::vector<context *> & sequences, const token_array & tokens, rows_array & logits);

    // Whether the draft's next token is this one. If so, it is in the sequence now, as if by a decode() of its own.
    bool accept_draft(llama_token token);

    // Takes back what is ahead. Whoever looks at the sequence, or changes it, calls this first.
    void drop_draft();

    // What may come after this token, n_min to n_max tokens or none, all of which can be taken back. See h2o_draft().
    token_array find_draft(llama_token token, uint32_t n_min, uint32_t n_max);

    void clear();
    void close();

    // Becomes a copy of another sequence of the same llama_context. It must be empty.
    void copy_from(context & other);

    // All that later tokens depend on, but for the logits and the token ids, as bytes.
    py::bytes get_state();
    void set_state(const py::bytes & state);

    bool can_rewind(uint32_t pos) const;

    // takes back the tokens from pos on
    void rewind(uint32_t pos);

    // Keeps the first n_kept tokens of another text, `ids`. Pieces of this one, (from, n, to), become what they are in
    // that one once it is read up to them, and need not be read.
    void arrange(uint32_t n_kept, const std::vector<std::array<uint32_t, 3>> & pieces, const token_array & ids);

    // token ids, less than -1 for rows of embeddings, -1 where they are not known; without what is ahead
    token_array tokens() const;

    // Replaces the sequence by the one of a whole state. If the bytes are refused, the sequence stays as it was.
    void restore(const py::bytes & state, const token_array & tokens);

    uint32_t n_tokens() const; // without what is ahead

    llama_context * get() const;

    // throws if the context is closed
    llama_h2o_kv * h2o() const { return llama_get_h2o_kv_seq(get(), seq_id); }

    std::vector<llama_token> arranged; // the text that pieces were last arranged for

    std::shared_ptr<llama_context> ptr;
    std::shared_ptr<model>         mdl;

    const llama_seq_id seq_id;

private:
    void init();

    void undo(uint32_t n_keep);

    // A single llama_decode. Throws an h2o_error, or a callback's exception; the caller undoes the call then.
    void compute(const llama_batch & batch, float * logits, int64_t n_rows, py::object progress);

    // throws h2o_error
    void write_state(const py::bytes & state);

    // numbers of a token's logits or embedding
    int64_t row_size() const;

    // how many tokens after the next one can be taken back
    uint32_t max_draft() const;

    // where the cache ends
    uint32_t n_cached() const;

    // the cache has changed otherwise than by decoding
    void sync_text();

    // data: K and V become 0, if there is but one sequence
    void clear_memory(bool data);

    const bool record;
    const bool verbose;
    const bool gives_embeddings;

    std::shared_ptr<callbacks> calls; // of the llama_context

    llama_h2o_kv * kv = nullptr; // none if H2O is off

    std::vector<llama_token> text; // of the cache; -1 where that is not known

    uint32_t n_ahead = 0; // tokens of a draft at the end of the cache, of which nothing is to be seen
};
