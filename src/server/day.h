#pragma once

#include "chat.h"
#include "common.h"
#include "json.h"

#include <chrono>
#include <map>
#include <string>

// Chat templates may write today's date before a document. A text that was read on an earlier day is found where the
// prompt has its date.

// While it exists, the thread that handles a request knows the request's headers.
struct server_h2o_headers {
    explicit server_h2o_headers(const std::map<std::string, std::string> & headers);
    ~server_h2o_headers();
};

// The time whose date a chat's template writes: the day of the owner's kept text that the chat continues, else now.
std::chrono::system_clock::time_point server_h2o_time(const common_params & params, const llama_vocab * vocab,
        const common_chat_templates * templates, const common_chat_templates_inputs & inputs, const common_json & body);
