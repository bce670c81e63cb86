#include "chat/messages.h"

#include "schema/simplify.h"

#include "json.h"

#include <utility>

static void append(common_chat_msg & message, const common_chat_msg & next) {
    if (message.content_parts.empty() && next.content_parts.empty()) {
        message.content += (message.content.empty() || next.content.empty() ? "" : "\n\n") + next.content;
        return;
    }
    for (const auto & text : { std::exchange(message.content, ""), next.content }) {
        if (!text.empty()) {
            message.content_parts.push_back({ "text", text });
        }
    }
    message.content_parts.insert(message.content_parts.end(), next.content_parts.begin(), next.content_parts.end());
}

bool h2o_chat_plain_roles(std::vector<common_chat_msg> & messages) {
    std::vector<common_chat_msg> plain;
    for (auto message : messages) {
        for (const auto & call : std::exchange(message.tool_calls, {})) {
            const auto given = common_json::parse_no_throw(call.arguments);
            if (given.is_discarded()) {
                return false;
            }
            common_chat_msg text;
            text.content = common_json { { "name", call.name }, { "arguments", given } }.dump_safe();
            append(message, text);
        }
        if (message.role == "tool") {
            message.role = "user";
            message.tool_name.clear();
            message.tool_call_id.clear();
        }
        if (!plain.empty() && plain.back().role == message.role) {
            append(plain.back(), message);
        } else {
            plain.push_back(std::move(message));
        }
    }
    std::swap(messages, plain);
    return messages != plain;
}

common_chat_msg h2o_chat_added(common_chat_msg message, const common_chat_msg & begun) {
    for (const auto text : { &common_chat_msg::content, &common_chat_msg::reasoning_content }) {
        if ((message.*text).compare(0, (begun.*text).size(), begun.*text) == 0) {
            (message.*text).erase(0, (begun.*text).size());
        }
    }
    return message;
}

std::vector<std::string> h2o_chat_left_out(
        const common_chat_templates * templates, const std::vector<common_chat_tool> & tools) {
    std::vector<std::string> sentences;
    if (!tools.empty() && !common_chat_templates_get_caps(templates).at("supports_tools")) {
        sentences.push_back("this model's chat template has no place for tools: the model is not told of them");
    }
    for (const auto & tool : tools) {
        std::vector<std::string> left_out;
        h2o_relaxed_schema(common_json::parse(tool.parameters), &left_out);
        for (const auto & what : left_out) {
            sentences.push_back("tool " + tool.name + ": " + what + " is left out: a grammar cannot keep it");
        }
    }
    return sentences;
}
