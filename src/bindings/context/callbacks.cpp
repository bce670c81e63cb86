#include "bindings/context/callbacks.h"

#include "ggml.h"

#include <utility>

static constexpr int64_t SIGNAL_INTERVAL_US = 50*1000;

void callbacks::begin(llama_h2o_kv * kv_call, py::object progress_call) {
    kv       = kv_call;
    progress = std::move(progress_call);
    error    = nullptr;
}

void callbacks::rethrow() {
    std::rethrow_exception(std::exchange(error, nullptr));
}

// Runs Python code from within llama_decode. Exceptions are kept until llama_decode has returned.
template <typename F>
bool callbacks::run_python(F call) {
    py::gil_scoped_acquire gil;
    try {
        call();
    } catch (...) {
        error = std::current_exception();
    }
    return !error;
}

bool callbacks::on_abort(void * data) {
    auto & self = *static_cast<callbacks *>(data);

    const int64_t t_us = ggml_time_us();
    if (!self.error && t_us - self.t_signals_us >= SIGNAL_INTERVAL_US) {
        self.t_signals_us = t_us;
        self.run_python([] {
            if (PyErr_CheckSignals() != 0) {
                throw py::error_already_set();
            }
        });
    }
    return self.error != nullptr || without_gil::is_ending();
}

bool callbacks::on_progress(int32_t /*phase*/, uint32_t n_done, uint32_t /*n_tokens*/, void * data) {
    auto & self = *static_cast<callbacks *>(data);

    if (n_done == 0 || self.progress.is_none()) {
        return !self.error;
    }
    return self.run_python([&] { self.progress(n_done); });
}
