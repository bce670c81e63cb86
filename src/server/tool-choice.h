#pragma once

#include "json.h"

#include <string>

// "auto", "none" or "required", of a request's "tool_choice". If that names a function, only this one is left among the
// tools. Throws std::invalid_argument if it has another form, or the function is not there.
std::string server_h2o_tool_choice(const common_json & choice, common_json & tools);
