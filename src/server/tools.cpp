#include "server/tools.h"

#include "chat/messages.h"

#include "log.h"

#include <mutex>
#include <set>
#include <stdexcept>

using json = common_json;

static std::string name_in(const json & function) {
    return function.is_object() && function.contains("name") && function.at("name").is_string() ?
        function.at("name").get<std::string>() : "";
}

// {"type": "function", "function": {"name": ...}}, or as the Responses API has it, without the inner object
static std::string function_name(const json & tool) {
    return tool.is_object() && tool.contains("function") ? name_in(tool.at("function")) : name_in(tool);
}

static std::string tool_choice(const json & choice, json & tools) {
    if (choice.is_null()) {
        return "auto";
    }
    if (choice.is_string()) {
        return choice.get<std::string>();
    }
    if (!choice.is_object() || !choice.contains("type") || choice.at("type") != "function") {
        throw std::invalid_argument("tool_choice must be \"auto\", \"none\", \"required\" or "
            "{\"type\": \"function\", \"function\": {\"name\": ...}}, got " + choice.dump_safe());
    }
    const std::string name = function_name(choice);
    if (tools.is_array()) {
        for (const auto & tool : tools) {
            if (!name.empty() && function_name(tool) == name) {
                const json only = tool;
                tools = json::array({ only });
                return "required";
            }
        }
    }
    throw std::invalid_argument("tool_choice names a function that is not among the tools: " + choice.dump_safe());
}

static void warn(json & body, const std::string & warning) {
    static std::mutex            mutex;
    static std::set<std::string> told;

    body["h2o_warnings"].push_back(warning);
    std::lock_guard<std::mutex> lock(mutex);
    if (told.size() < 1000 && told.insert(warning).second) {
        LOG("%s\n", warning.c_str());
    }
}

std::string server_h2o_read_tools(json & body, json & tools, const common_chat_templates * templates) {
    const auto choice = tool_choice(body.value("tool_choice", json()), tools);

    body["h2o_warnings"] = json::array();
    if (choice != "none" && tools.is_array()) {
        for (const auto & sentence : h2o_chat_left_out(templates, common_chat_tools_parse_oaicompat(tools))) {
            warn(body, sentence);
        }
    }
    return choice;
}
