#pragma once

#include "json.h"

// Clients send null for a field that they leave out. Removes such fields from a chat's request, its messages, their
// tool calls and its tools, and lists of calls that are empty. A call without arguments gets "{}".
void h2o_chat_remove_nulls(common_json & request);
