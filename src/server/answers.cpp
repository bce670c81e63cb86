#include "server/answers.h"

#include "server-common.h"
#include "server-task.h"
#include "server/thoughts.h"

#include <cstdint>
#include <stdexcept>

common_chat_msg server_h2o_parse(common_chat_session & session, const common_chat_input & added, bool is_partial,
        const common_chat_msg & so_far, std::string & unparsed) {
    const auto whole = is_partial ? added : added.substr(0, validate_utf8(added.text)); // it may end in a character
    unparsed += whole.text;
    try {
        const auto & message = is_partial ? session.feed(whole) : session.finish(whole);
        common_chat_msg_diff::compute_diffs(so_far, message); // throws if it takes back a part of so_far
        unparsed.clear();
        return message;
    } catch (const std::runtime_error &) {
        auto message = so_far;
        message.role = "assistant";
        message.content += is_partial ? "" : unparsed;
        return message;
    }
}

json server_h2o_end(server_task_result_cmpl_final & result) {
    result.content = result.content.substr(0, validate_utf8(result.content.text));
    json answer = result.to_json();

    // what tells the end: the answer; of a stream, its last event, or before Anthropic's message_stop
    json * end = &answer;
    if (answer.is_array() && !answer.empty()) {
        end = &answer.at(answer.size() - (result.res_type == TASK_RESPONSE_TYPE_ANTHROPIC ? 2 : 1));
    }
    if (result.res_type == TASK_RESPONSE_TYPE_OAI_CHAT && result.stream && !result.h2o_has_begun) {
        answer.at(0).at("choices").at(0)["delta"] = { { "role", "assistant" }, { "content", nullptr } };
    }
    if (result.res_type == TASK_RESPONSE_TYPE_ANTHROPIC) {
        end = result.stream ? &end->at("data") : end;
        json & message = result.stream ? end->at("delta") : *end;
        if (message.at("stop_reason") == "end_turn" && result.stop == STOP_TYPE_WORD) {
            message["stop_reason"] = "stop_sequence";
        }
    }
    if (result.res_type == TASK_RESPONSE_TYPE_OAI_RESP) {
        json & response = result.stream ? end->at("data").at("response") : *end;
        if (result.stop == STOP_TYPE_LIMIT) {
            response["status"] = "incomplete";
            response["incomplete_details"] = { { "reason", "max_output_tokens" } };
            if (result.stream) {
                (*end)["event"] = end->at("data")["type"] = "response.incomplete";
            }
        }
        end = &response;
    }
    const auto & chat = result.generation_params.h2o_chat;
    server_h2o_keep_thoughts(chat.name, result.oaicompat_msg);
    if (!chat.warnings.empty() && end->is_object()) {
        (*end)["warnings"] = chat.warnings;
    }
    return answer;
}

void server_h2o_add_usage(json & usage, const json & other) {
    const auto n_generated = usage.at("completion_tokens").get<int64_t>() + other.at("completion_tokens").get<int64_t>();
    usage["completion_tokens"] = n_generated;
    usage["total_tokens"]      = usage.at("prompt_tokens").get<int64_t>() + n_generated;
}

void server_h2o_sum_usage(json & events, json & sum, bool is_last) {
    const bool is_list = events.is_array() && !events.empty();
    json & end = is_list ? events.at(events.size() - 1) : events;
    if (!end.is_object() || !end.contains("usage")) {
        return;
    }
    json & usage = end.at("usage");
    if (!sum.is_null()) {
        server_h2o_add_usage(usage, sum);
    }
    sum = usage;
    if (is_list && !is_last) {
        events.erase(events.size() - 1);
    }
}

server_h2o_chat server_h2o_chat_of(const json & request) {
    return { json_value(request, "h2o_chat", std::string()),
        json_value(request, "h2o_warnings", std::vector<std::string>()) };
}
