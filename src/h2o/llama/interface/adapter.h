#pragma once

#include "llama.h"

#include <stdint.h>

// What tells a LoRA adapter from others: a hash of its weights, their names and alpha, wherever its file is.
LLAMA_API uint64_t llama_h2o_adapter_hash(const struct llama_adapter_lora * adapter);
