#pragma once

#include "bindings/context/callbacks.h"
#include "bindings/model/model.h"

#include "llama-h2o.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

struct decode_batch;

// A new context with the model's adapters. Throws an h2o_error that begins with `where`.
llama_context * open_context(model & mdl, const llama_context_params & params, const std::string & where, bool verbose);

// A sequence of a llama_context, which the others share. Not thread safe: their owner in Python lets one thread in at a time.
class context {
public:
    using token_array  = py::array_t<llama_token, py::array::c_style>;
    using logits_array = py::array_t<float, py::array::c_style>;

    // the first sequence of a new llama_context
    context(std::shared_ptr<model> mdl, llama_context_params params, bool record, bool profile, bool verbose);

    // another one, up to n_seq_max - 1
    context(const context & first, llama_seq_id seq_id);

    // Appends prompt tokens or generated tokens by one llama_decode. If `rows` [n, n_embd] is not empty, the model reads these
    // embeddings, and each id is the h2o_embedding_id() of its row. `logits` has a row for each token, one row for the last
    // token, or none. With H2O progress(n_done) is called after every chunk. If it raises, or Ctrl-C is pressed, the call is undone.
    void decode(const token_array & ids, const logits_array & rows, logits_array & logits, uint32_t dense_tail, bool generated,
            py::object progress);

    // Appends a generated token to each of several sequences of one llama_context, by one llama_decode. logits has a row for each.
    static void decode_each(const std::vector<context *> & sequences, const token_array & tokens, logits_array & logits);

    // Appends a generated token, and computes a draft of what follows in the same llama_decode. The sequence ends with the token,
    // the current logits are the token's: the draft is ahead. logits has a row for each.
    void decode_draft(const token_array & tokens, logits_array & logits);

    // Whether the draft goes on with this token. If so, it is in the sequence now, as if by decode().
    bool accept_draft(llama_token token);

    // Takes back what is ahead. Whoever looks at the sequence, or changes it, calls this first.
    void drop_draft();

    // What may come after this token, n_min to n_max tokens or none, all of which can be taken back. See h2o_draft().
    token_array find_draft(llama_token token, uint32_t n_min, uint32_t n_max);

    void clear();
    void close();

    // Becomes a copy of another sequence of the same llama_context. It must be empty.
    void copy_from(context & other);

    // as upstream's programs, for tests: takes back the tokens from start on; states, rows: with K and V, of a partial state
    bool      remove(int32_t start);
    py::bytes get_state(bool partial, bool rows = true, std::optional<uint32_t> end = {});
    void      set_state(const py::bytes & state, bool partial, bool rows = true);

    bool can_rewind(uint32_t pos) const;

    // takes back the tokens from pos on
    void rewind(uint32_t pos);

    // token ids, less than -1 for rows of embeddings, -1 where they are not known; without what is ahead
    token_array tokens() const;

    // All that later tokens depend on, but for the logits and the token ids, as bytes for restore().
    py::bytes snapshot();

    // Goes on where the snapshot was made. logits are the last token's, or empty: none are known. If the bytes are refused, the
    // sequence stays as it was.
    void restore(const py::bytes & state, const token_array & tokens, const logits_array & logits);

    uint32_t n_tokens() const; // without what is ahead

    // the last token's logits, [n_vocab]; nullptr if there are none
    const float * last_logits() const;
    logits_array  last_logits_array() const;

    // where they are, from the end of the rows of the last call
    int32_t logits_index() const { return i_logits; }

    uint64_t n_drafted()  const { return stats_drafted; }
    uint64_t n_accepted() const { return stats_accepted; }

    llama_context * get() const;

    // throws if the context is closed
    llama_h2o_kv * h2o() const { return llama_get_h2o_kv_seq(get(), seq_id); }

    std::shared_ptr<llama_context> ptr;
    std::shared_ptr<model>         mdl;

    const llama_seq_id seq_id;

private:
    void init();

    void undo(uint32_t n_keep);

    // One llama_decode of this sequence, after which there is nothing ahead. The last n_keep rows of logits may become the last token's.
    void run(decode_batch & batch, logits_array & logits, uint32_t dense_tail, bool generated, py::object progress, uint32_t n_keep);

    // one llama_decode; false if it failed
    bool compute(const llama_batch & batch, float * logits, int64_t n_rows, py::object progress);

    [[noreturn]] void raise_failure();

    // throws std::invalid_argument unless n is 1 to n_batch, and logits are [n_rows, n_vocab]
    void check_shapes(const char * function, int64_t n, const logits_array & logits, int64_t n_rows) const;

    // these tokens are in the cache now
    void add_tokens(const llama_token * ids, size_t n, const float * rows, size_t n_rows);

    // throw h2o_error
    py::bytes read_state (llama_state_seq_flags flags);
    void      write_state(const py::bytes & state, llama_state_seq_flags flags);

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

    std::shared_ptr<callbacks> calls; // of the llama_context

    std::string failure; // why llama_decode failed

    llama_h2o_kv * kv = nullptr; // none if H2O is off

    std::vector<float> kept_logits; // of the last tokens of the last call; empty if there are none
    int32_t            i_logits = -1;

    std::vector<llama_token> text; // of the cache; -1 where that is not known

    uint32_t n_ahead = 0; // tokens of a draft at the end of the cache, of which nothing is to be seen

    uint64_t stats_drafted  = 0; // since the sequence began
    uint64_t stats_accepted = 0;
};
