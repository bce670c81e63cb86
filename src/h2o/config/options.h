#pragma once

#include "llama-h2o.h"

#include <string>

// Sets an option by its name or flag. Throws std::invalid_argument with the allowed values.
void h2o_set_option(llama_h2o_params & params, const std::string & name, const std::string & value);

// throws std::invalid_argument if an option is out of its range
void h2o_check_options(const llama_h2o_params & params);

// as h2o_set_option() takes it
std::string h2o_option_text(const llama_h2o_params & params, const llama_h2o_option & option);
