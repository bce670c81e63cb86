#pragma once

#include "llama.h"

#include <map>
#include <string>

// How positions are turned into angles where that is not the model's own way, by llama.cpp's names. The type of scaling
// is the number that it has in enum llama_rope_scaling_type.
using rope_options = std::map<std::string, double>;

void apply(const rope_options & rope, llama_context_params & params);
