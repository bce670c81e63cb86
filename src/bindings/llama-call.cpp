#include "bindings/llama-call.h"

#include "bindings/log.h"

#include <cstdio>
#include <stdexcept>
#include <utility>

// llama.cpp's log has no idea which context a line belongs to, but it is written by the thread that made the call.
static thread_local llama_call * current = nullptr;

llama_call::llama_call(bool verbose, asserts on_assert) : verbose(verbose), on_assert(on_assert), previous(current) {
    current = this;
    if (!previous) {
        h2o_take_reason(); // of another call
    }
}

llama_call::~llama_call() {
    current = previous;
    if (!previous) {
        log_hand_over();
    }
}

// The log has metadata of model files, which no terminal may obey. In UTF-8 c2 80 to c2 9f are control characters, too.
static std::string printable(std::string text) {
    for (size_t i = 0; i < text.size(); i++) {
        const unsigned char c = text[i];
        const bool is_c1 = i > 0 && text[i - 1] == '\xc2' && c >= 0x80 && c < 0xa0;
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || is_c1) {
            text[i] = '?';
        }
    }
    return text;
}

// "function: message\n" -> "message"
static std::string strip(const std::string & line) {
    const size_t colon = line.find(": ");
    const bool   named = colon != std::string::npos && line.find(' ') > colon;

    const size_t begin = named ? colon + 2 : 0;
    const size_t end   = line.find_last_not_of(" \n");

    return end == std::string::npos || end < begin ? "" : line.substr(begin, end + 1 - begin);
}

// upstream's own errors have no types: how those begin that ggml's allocators log, and how an exception ends that it
// caught
static bool is_of_memory(const std::string & message) {
    static const std::string bad_alloc = std::bad_alloc().what();

    return message.rfind("failed to allocate ", 0) == 0 || message.rfind("insufficient memory ", 0) == 0 ||
        (message.size() >= bad_alloc.size() &&
            message.compare(message.size() - bad_alloc.size(), std::string::npos, bad_alloc) == 0);
}

std::string llama_call::reason() const {
    finish_line();

    std::string result;
    for (const auto & line : errors.empty() ? warnings : errors) {
        const std::string text = strip(line);
        if (!text.empty() && text != "failed to load model") {
            result += (result.empty() ? "" : "; ") + text;
        }
    }
    return result.empty() ? "no reason was given" : result;
}

void llama_call::add(const log_line & line) {
    if (line.level == GGML_LOG_LEVEL_WARN) {
        warnings.push_back(line.text);
    } else if (line.level == GGML_LOG_LEVEL_ERROR) {
        errors.push_back(line.text);
        if (is_of_memory(strip(line.text))) {
            h2o_set_reason(h2o_reason::MEMORY);
        }
    }
}

// A line comes in pieces. All but the first have the level "continued".
static thread_local log_line unfinished = { GGML_LOG_LEVEL_NONE, "" };

void llama_call::finish_line() {
    unfinished.text.erase(unfinished.text.find_last_not_of(" \n") + 1);
    if (!unfinished.text.empty()) {
        if (current) {
            current->add(unfinished);
        }
        log_add(std::exchange(unfinished, { unfinished.level, "" }));
    }
}

void llama_call::on_log(ggml_log_level level, const char * text, void * /*user_data*/) {
    if (level != GGML_LOG_LEVEL_CONT) {
        finish_line();
        unfinished.level = level;
    }
    unfinished.text += text;
    if (!unfinished.text.empty() && unfinished.text.back() == '\n') {
        finish_line();
    }
    if (current && current->verbose && unfinished.level != GGML_LOG_LEVEL_DEBUG) {
        fputs(printable(text).c_str(), stderr);
        fflush(stderr);
    }
    if (current && current->on_line) {
        current->on_line(text);
    }
}

// Upstream asserts on the contents of model files, so a file could end the process. Where a call says THROW, only this
// thread runs, ggml's C is compiled to let exceptions pass (cmake/h2o.cmake), and callers report them as errors.
void llama_call::on_abort(const char * message) {
    if (current && current->on_assert == THROW) {
        const std::string text  = message;
        const size_t      colon = text.find(':');
        const size_t      slash = text.rfind('/', colon);
        throw std::runtime_error(slash == std::string::npos ? text : text.substr(slash + 1));
    }
    fprintf(stderr, "%s\n", message);
}

bool llama_call::on_compute(ggml_tensor * /*t*/, bool /*ask*/, void * /*user_data*/) {
    if (current) {
        current->on_assert = ABORT;
    }
    return false; // nothing is to be seen
}
