#pragma once

#include "json.h"

#include <string>

struct common_chat_templates;

// "auto", "none" or "required", of a request's "tool_choice". If that names a function, only this one is left among its
// tools. Throws std::invalid_argument if it has another form, or the function is not there. What of the tools the model
// is not told, or its grammar does not keep, becomes a warning of the request, and once a line of the log.
std::string server_h2o_read_tools(common_json & body, common_json & tools, const common_chat_templates * templates);
