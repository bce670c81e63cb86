#pragma once

#include "bindings/log.h"
#include "h2o/config/refusal.h"

#include "ggml.h"

#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

// Something failed while running: h2o_llama.H2OError, or the one of its classes that says the reason. A bad argument is
// std::invalid_argument, which becomes ValueError.
struct h2o_error : std::runtime_error {
    h2o_error(h2o_reason reason, const std::string & what) : std::runtime_error(what), reason(reason) {}

    // for the reason that this thread's call has left
    explicit h2o_error(const std::string & what) : h2o_error(h2o_take_reason(), what) {}

    h2o_reason reason;
};

// What this thread's calls into llama.cpp do with its log and its failed assertions, for the lifetime of the object.
class llama_call {
public:
    enum asserts {
        ABORT, // a failed GGML_ASSERT ends the process
        THROW, // it throws std::runtime_error: only where upstream asserts on what a model file or a template says
    };

    explicit llama_call(bool verbose, asserts on_assert = ABORT);
    ~llama_call();

    llama_call(const llama_call &) = delete;
    llama_call & operator=(const llama_call &) = delete;

    // the errors logged since the construction, or the warnings if there are none, as one line
    std::string reason() const;

    // f(); whatever it throws becomes an h2o_error that begins with `where`
    template <typename F>
    static auto run(const std::string & where, F f) -> decltype(f()) {
        try {
            return f();
        } catch (const h2o_error & e) {
            throw h2o_error(e.reason, where + e.what());
        } catch (const std::bad_alloc &) {
            throw h2o_error(h2o_reason::MEMORY, where + "not enough memory");
        } catch (const std::exception & e) {
            throw h2o_error(where + e.what());
        }
    }

    // called with every line that is logged; its exceptions pass through llama.cpp
    std::function<void(const char *)> on_line;

    static void on_log(ggml_log_level level, const char * text, void * user_data);
    static void on_abort(const char * message);

    // To be cb_eval of what a call with THROW may compute: other threads compute then, too, and cannot be left. From
    // then on it is ABORT.
    static bool on_compute(ggml_tensor * t, bool ask, void * user_data);

private:
    static void finish_line(); // of this thread's log

    void add(const log_line & line);

    const bool verbose;
    asserts on_assert;

    llama_call * const previous;

    std::vector<std::string> warnings;
    std::vector<std::string> errors;
};
