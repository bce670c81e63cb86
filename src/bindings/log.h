#pragma once

#include "ggml.h"

#include <string>

struct log_line {
    ggml_log_level level;
    std::string    text;
};

// llama.cpp's log on its way to Python's logging, to the logger "h2o_llama.llama_cpp".
//
// The logging thread may hold a lock of llama.cpp's or be unknown to Python, so Python is not called from there: lines
// wait until the outermost llama_call of a thread ends.
void log_add(log_line line);

// Hands over the waiting lines, with or without the GIL. Exceptions are reported as unraisable.
void log_hand_over();
