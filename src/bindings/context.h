#pragma once

#include "model.h"

#include "llama-h2o.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// A llama_context with one sequence. Not thread safe: its owner in Python lets one thread in at a time.
class context {
public:
    using token_array  = py::array_t<llama_token, py::array::c_style>;
    using logits_array = py::array_t<float, py::array::c_style>;

    context(std::shared_ptr<model> mdl, llama_context_params params, bool record, bool profile, bool verbose);

    // Appends the tokens, a prompt or generated ones, by one llama_decode. logits has a row for each of them, or one row: the
    // last token's, or none. progress(n_done) is called after every chunk, if H2O is on. If it raises, or Ctrl-C is pressed,
    // the call is undone.
    void decode(const token_array & tokens, logits_array & logits, uint32_t dense_tail, bool generated, py::object progress);

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

    // the memory's functions that upstream's programs call: for tests
    bool    remove(int32_t start); // to the end
    int32_t min_position() const;
    py::bytes get_state(bool partial);
    void      set_state(const std::string & state, bool partial);

    // The nearest positions to which the sequence can be rewound: at most this one, and at least this one. Drops the draft.
    std::pair<uint32_t, uint32_t> rewind_points(uint32_t pos);

    // takes back the tokens from pos on, one of the points
    void rewind(uint32_t pos);

    // token ids, -1 where they are not known; without what is ahead
    token_array tokens() const;

    // All that later tokens depend on, but for the logits and the token ids, as bytes for restore().
    py::bytes snapshot();

    // Goes on where the snapshot was made. logits are the last token's, or empty: none are known. If the bytes are refused, the
    // sequence stays as it was.
    void restore(const py::bytes & state, const token_array & tokens, const logits_array & logits);

    uint32_t n_tokens() const; // without what is ahead
    uint64_t kv_bytes() const;

    bool has_logits() const { return logits_valid; }

    // of the last token's logits, from the end of the rows of the last call
    int32_t logits_index() const { return i_logits; }

    // the last token's, [n_vocab]
    const float * last_logits() const;

    uint64_t n_drafted()  const { return stats_drafted; }
    uint64_t n_accepted() const { return stats_accepted; }

    llama_context * get() const;

    std::shared_ptr<llama_context> ptr;
    std::shared_ptr<model>         mdl;

private:
    static bool on_abort(void * data);
    static bool on_progress(int32_t phase, uint32_t n_done, uint32_t n_tokens, void * data);

    template <typename F> bool run_python(F call);

    void undo(uint32_t n_keep);

    bool can_rewind(uint32_t pos) const;

    // throws h2o_error
    void write_state(const py::bytes & state);

    // one llama_decode, after which there is nothing ahead
    void run(const token_array & tokens, logits_array & logits, uint32_t dense_tail, bool generated, py::object progress);

    // how many tokens after the next one can be taken back
    uint32_t max_draft() const;

    // where the cache ends
    uint32_t n_cached() const;

    // the cache has changed otherwise than by decoding
    void sync_text();

    const bool verbose;

    llama_h2o_kv * kv = nullptr; // none if H2O is off

    bool    logits_valid = false;
    int32_t i_logits     = -1;

    std::vector<float> restored_logits; // of the last token, if it was not computed here

    std::vector<llama_token> text; // of the cache; -1 where that is not known

    uint32_t n_ahead = 0; // tokens of a draft at the end of the cache, of which nothing is to be seen

    uint64_t stats_drafted  = 0; // since the sequence began
    uint64_t stats_accepted = 0;

    // of the call that is running
    py::object         progress;
    std::exception_ptr error;
    int64_t            t_signals_us = 0;
};
