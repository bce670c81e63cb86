#pragma once

#include "ggml.h"

#include <string>

// by ggml's name, such as "q8_0"; throws std::invalid_argument
ggml_type find_type(const std::string & name);
