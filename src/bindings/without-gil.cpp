#include "bindings/without-gil.h"

#include "bindings/bindings.h"

#include <atomic>
#include <chrono>
#include <thread>

static struct {
    std::atomic<int>  n_within  = 0;     // changes where the GIL is held
    std::atomic<bool> returning = false; // calls in progress are to end
    std::atomic<bool> closed    = false; // to all threads but the last one
    std::atomic<bool> computed  = false; // something, before or after a fork
    std::atomic<bool> forked    = false; // after that
    std::thread::id   last_thread;
} gate;

without_gil::without_gil() {
    if (gate.closed && std::this_thread::get_id() != gate.last_thread) {
        throw h2o_error("[h2o] Python is ending: nothing more can be computed");
    }
    ++gate.n_within;
    release.emplace();
}

without_gil::~without_gil() {
    release.reset();
    --gate.n_within;
}

bool without_gil::is_ending() {
    return gate.returning;
}

static void end_calls() {
    gate.last_thread = std::this_thread::get_id();
    gate.closed      = true;
    gate.returning   = true;
    while (gate.n_within > 0) {
        {
            py::gil_scoped_release release;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        if (PyErr_CheckSignals() != 0) {
            throw py::error_already_set(); // Ctrl-C: a callback of one of them may wait for ever
        }
    }
    gate.returning = false;
}

computing::computing(bool starts_threads) {
    check();
    if (starts_threads) {
        gate.computed = true;
    }
}

bool computing::is_forked() {
    return gate.forked;
}

void computing::check() {
    if (gate.forked) {
        throw h2o_error("[h2o] this process was forked from one that has computed, and lacks the threads for it: start "
                        "processes by "
                        "multiprocessing.get_context(\"spawn\"), and open models there");
    }
}

void without_gil::register_end() {
    py::module_::import("atexit").attr("register")(py::cpp_function(end_calls));
    py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") = py::cpp_function([] {
        gate.n_within = 0; // other threads do not exist there
        gate.forked   = gate.computed.load();
    }));
}
