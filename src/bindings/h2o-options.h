#pragma once

#include "llama-h2o.h"

#include <map>
#include <string>

// by the name of a llama_h2o_option, as text
using option_values = std::map<std::string, std::string>;

// the rest are the defaults; throws std::invalid_argument if one is bad
llama_h2o_params read_options(const option_values & values);
