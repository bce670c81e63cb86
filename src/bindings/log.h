#pragma once

#include "ggml.h"

// llama.cpp's log on its way to Python's logging, to the logger "h2o_llama.llama_cpp".
//
// Whoever logs may hold a lock of llama.cpp's, or be a thread that Python does not know, so nothing is called from there: lines
// wait until the outermost llama_call of a thread ends.
void log_add(ggml_log_level level, const char * text);

// Hands over what waits. With or without the GIL; what is raised is reported as unraisable.
void log_hand_over();
