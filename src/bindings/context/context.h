#pragma once

#include "bindings/context/callbacks.h"
#include "bindings/model/model.h"

#include "llama-h2o.h"

#include <pybind11/numpy.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

struct decode_batch;

// A sequence of a llama_context, which the others share. Not thread safe: their owner in Python lets one thread in at a time.
class context {
public:
    using token_array  = py::array_t<llama_token, py::array::c_style>;
    using logits_array = py::array_t<float, py::array::c_style>;

    // the first sequence of a new llama_context
    context(std::shared_ptr<model> mdl, llama_context_params params, bool record, bool profile, bool verbose);

    // another one, up to n_seq_max - 1
    context(const context & first, llama_seq_id seq_id);

    // Appends the tokens, a prompt or generated ones, by one llama_decode. logits has a row for each of them, or one row: the
    // last token's, or none. progress(n_done) is called after every chunk, if H2O is on. If it raises, or Ctrl-C is pressed,
    // the call is undone.
    void decode(const token_array & tokens, logits_array & logits, uint32_t dense_tail, bool generated, py::object progress);

    // Appends rows of embeddings [n, n_embd] of the model's input, as decode() does a prompt's tokens. Among token ids they are
    // h2o_embedding_id().
    void decode_embeddings(const logits_array & rows, logits_array & logits, uint32_t dense_tail, py::object progress);

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

    // the memory's functions that upstream's programs call: for tests
    bool    remove(int32_t start); // to the end
    int32_t min_position() const;
    // rows: with K and V, of a partial state
    py::bytes get_state(bool partial, bool rows = true, std::optional<uint32_t> end = {});
    void      set_state(const std::string & state, bool partial, bool rows = true);

    // The nearest positions to which the sequence can be rewound: at most this one, and at least this one. Drops the draft.
    std::pair<uint32_t, uint32_t> rewind_points(uint32_t pos);

    // takes back the tokens from pos on, one of the points
    void rewind(uint32_t pos);

    // Ranges of positions, first and last, to which the sequence could be rewound after a restore.
    std::vector<std::pair<uint32_t, uint32_t>> state_points();

    // What of a snapshot's bytes are rows of tokens: offset, first position, how many, bytes of one. See llama_h2o_state_rows().
    std::vector<std::array<uint64_t, 4>> state_rows();

    // of all chunks, where that takes little memory: the sequence can go back to them
    void keep_boundaries();

    // token ids, less than -1 for rows of embeddings, -1 where they are not known; without what is ahead
    token_array tokens() const;

    // All that later tokens depend on, but for the logits and the token ids, as bytes for restore().
    py::bytes snapshot();

    // Goes on where the snapshot was made. logits are the last token's, or empty: none are known. If the bytes are refused, the
    // sequence stays as it was.
    void restore(const py::bytes & state, const token_array & tokens, const logits_array & logits);

    uint32_t n_tokens() const; // without what is ahead
    uint64_t kv_bytes() const;

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

    bool can_rewind(uint32_t pos) const;

    // throws h2o_error
    void write_state(const py::bytes & state);

    // how many tokens after the next one can be taken back
    uint32_t max_draft() const;

    // where the cache ends
    uint32_t n_cached() const;

    // the cache has changed otherwise than by decoding
    void sync_text();

    // data: K and V become 0, if there is but one sequence
    void clear_memory(bool data);

    const llama_seq_id seq_id;
    const bool         record;
    const bool         verbose;

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
