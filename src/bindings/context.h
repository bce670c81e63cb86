#pragma once

#include "model.h"

#include "llama-h2o.h"

#include <pybind11/numpy.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

// A llama_context with one sequence. Not thread safe: its owner in Python lets one thread in at a time.
class context {
public:
    context(std::shared_ptr<model> mdl, llama_context_params params, bool record, bool profile, bool verbose);

    // Appends the tokens, a prompt or generated ones, by one llama_decode. logits has a row for each of them, or one row: the
    // last token's, or none. progress(n_done) is called after every chunk, if H2O is on. If it raises, or Ctrl-C is pressed,
    // the call is undone.
    void decode(py::array_t<llama_token, py::array::c_style> tokens, py::array_t<float, py::array::c_style> logits, uint32_t dense_tail,
            bool generated, py::object progress);

    void clear();
    void close();

    // the memory's functions that upstream's programs call: for tests
    bool    remove(int32_t start); // to the end
    int32_t min_position() const;
    py::bytes get_state(bool partial) const;
    void      set_state(const std::string & state, bool partial);

    uint32_t n_tokens() const;
    uint64_t kv_bytes() const;

    bool has_logits() const { return logits_valid; }

    llama_context * get() const;

    std::shared_ptr<llama_context> ptr;
    std::shared_ptr<model>         mdl;

private:
    static bool on_abort(void * data);
    static bool on_progress(int32_t phase, uint32_t n_done, uint32_t n_tokens, void * data);

    template <typename F> bool run_python(F call);

    void undo(uint32_t n_keep);

    const bool verbose;

    llama_h2o_kv * kv = nullptr; // none if H2O is off

    bool logits_valid = false;

    // of the call that is running
    py::object         progress;
    std::exception_ptr error;
    int64_t            t_signals_us = 0;
};
