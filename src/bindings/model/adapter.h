#pragma once

#include "llama.h"

#include <string>

// Loads a LoRA adapter, which the model then owns. Throws std::invalid_argument, with the reason, unless the file is a
// GGUF adapter for this model from which graphs can be built without a failed assertion.
llama_adapter_lora * load_adapter(llama_model * model, const std::string & path, bool verbose);
