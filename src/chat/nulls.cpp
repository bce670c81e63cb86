#include "chat/nulls.h"

#include <algorithm>
#include <string>
#include <vector>

// what a null says in other fields, such as a schema or arguments, is not ours
static const std::vector<std::string> READ = { "messages", "tool_calls", "tools", "function" };

void h2o_chat_remove_nulls(common_json & request) {
    if (request.is_array()) {
        for (auto & item : request) {
            h2o_chat_remove_nulls(item);
        }
    }
    if (!request.is_object()) {
        return;
    }
    std::vector<std::string> removed;
    for (const auto & item : request.items()) {
        if (item.value().is_null() || (item.key() == "tool_calls" && item.value().empty())) {
            removed.push_back(item.key());
        } else if (std::find(READ.begin(), READ.end(), item.key()) != READ.end()) {
            h2o_chat_remove_nulls(item.value());
        }
        const bool is_function = item.key() == "function" && item.value().is_object();
        if (is_function && item.value().value("arguments", common_json("")) == "") {
            item.value()["arguments"] = "{}";
        }
    }
    for (const auto & name : removed) {
        request.erase(name);
    }
}
