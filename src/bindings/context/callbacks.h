#pragma once

#include "bindings/bindings.h"

#include "llama-h2o.h"

#include <cstdint>
#include <exception>

// What llama_decode calls while it computes. It lives as long as the llama_context that knows it.
class callbacks {
public:
    // a call begins, on this sequence or, of several, on one of them
    void begin(llama_h2o_kv * kv, py::object progress);
    void end() { progress = {}; }

    // something was raised while the call ran: it is raised again, once
    bool failed() const { return error != nullptr; }
    void rethrow();

    static bool on_abort   (void * data);
    static bool on_progress(int32_t phase, uint32_t n_done, uint32_t n_tokens, void * data);

    llama_h2o_kv * kv = nullptr; // whose profile measures the call; none if H2O is off

private:
    template <typename F> bool run_python(F call);

    py::object         progress; // a null pointer but during a call: this may be made and freed without the GIL
    std::exception_ptr error;
    int64_t            t_signals_us = 0;
};
