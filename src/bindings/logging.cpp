#include "bindings.h"
#include "llama-call.h"

#include "llama.h"

// From the first import on nothing is printed but what a verbose llama_call lets through.
void init_logging() {
    llama_log_set(llama_call::on_log, nullptr);
    ggml_set_abort_callback(llama_call::on_abort);
}
