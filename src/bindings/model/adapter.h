#pragma once

#include "llama.h"

#include <string>

// Loads a LoRA adapter for a model, whose own it becomes. Throws std::invalid_argument, with the reason, for a file that is no GGUF
// adapter, is for another model, or has what would end the process in an assertion once a graph is made of it.
llama_adapter_lora * load_adapter(llama_model * model, const std::string & path, bool verbose);
