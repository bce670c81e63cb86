#include "server/dialects.h"

#include "base64.hpp"
#include "http.h"
#include "server-common.h"
#include "server/routes.h"

#include <algorithm>
#include <stdexcept>

using strings = std::vector<std::string>;

static bool is_messages(const std::string & path) {
    return string_starts_with(path, "/v1/messages");
}

static bool is_responses(const std::string & path) {
    return string_starts_with(path, "/v1/responses") || string_starts_with(path, "/responses");
}

// --- requests

template <typename F>
static void for_each_in(json & object, const char * name, F f) {
    if (object.is_object() && object.contains(name) && object.at(name).is_array()) {
        for (auto & item : object.at(name)) {
            f(item);
        }
    }
}

static std::string text_in(const json & object, const char * name) {
    return object.is_object() ? json_value(object, name, std::string()) : "";
}

// an object's text, or that of its blocks
static std::string all_text_in(json object, const char * name) {
    strings texts;
    for_each_in(object, name, [&](const json & block) { texts.push_back(text_in(block, "text")); });
    return texts.empty() ? text_in(object, name) : string_join(texts, "\n");
}

// a block of content as upstream takes it: documents are texts
static void read_block(json & block) {
    static const strings KNOWN = { "text", "thinking", "redacted_thinking", "image", "tool_use", "tool_result" };

    const auto type   = text_in(block, "type");
    const json source = block.is_object() ? block.value("source", json()) : json();
    const auto from   = text_in(source, "type");
    const bool is_known = type == "image" ? from == "base64" || from == "url" :
        type == "document" ? from == "text" || from == "content" || from == "base64" :
        type == "search_result" || std::find(KNOWN.begin(), KNOWN.end(), type) != KNOWN.end();
    if (!is_known) {
        throw std::invalid_argument("content of type \"" + type + "\"" + (from.empty() ? "" : " from \"" + from + "\"") +
            " is not read: send its text, or a document from \"base64\"");
    }
    if (type == "document" || type == "search_result") {
        const auto title = text_in(block, "title");
        strings texts = { title, text_in(block, "context"), text_in(block, "source"),
            from == "base64" ? server_h2o_document_text(title, base64::decode(text_in(source, "data"))) :
                all_text_in(source, from == "text" ? "data" : "content"), all_text_in(block, "content") };
        texts.erase(std::remove_if(texts.begin(), texts.end(),
            [](const auto & text) { return string_strip(text).empty(); }), texts.end());
        block = json { { "type", "text" }, { "text", string_join(texts, "\n\n") } };
    }
    for_each_in(block, "content", read_block);
}

// a part of a message of OpenAI's that is a file: its text
static void read_part(json & part) {
    const auto type = text_in(part, "type");
    if (type == "file" || type == "input_file") {
        const json file = type == "file" ? part.value("file", json()) : part;
        const auto data = text_in(file, "file_data");
        if (data.empty()) {
            throw std::invalid_argument("content of type \"" + type + "\" is not read without its \"file_data\" in base64");
        }
        part = json { { "type", type == "file" ? "text" : "input_text" }, { "text", // of a data URL, or of all
            server_h2o_document_text(text_in(file, "filename"), base64::decode(data.substr(data.find(',') + 1))) } };
    }
}

static void read_files(json & body, const char * messages) {
    for_each_in(body, messages, [](json & message) { for_each_in(message, "content", read_part); });
}

static void read_messages(json & body) {
    for_each_in(body, "messages", [](json & message) { for_each_in(message, "content", read_block); });

    const json format = json_value(json_value(body, "output_config", json::object()), "format",
        json_value(body, "output_format", json()));
    if (!format.is_null()) {
        body["response_format"] = { { "type", format.value("type", json()) }, { "json_schema", format } };
    }
    const json choice = json_value(body, "tool_choice", json());
    const auto type   = text_in(choice, "type");
    if (type == "tool") {
        body["tool_choice"] = { { "type", "function" }, { "function", { { "name", text_in(choice, "name") } } } };
    } else if (!type.empty()) {
        body["tool_choice"] = type == "any" ? "required" : type;
    }
    if (!type.empty() && json_value(choice, "disable_parallel_tool_use", false)) {
        body["parallel_tool_calls"] = false;
    }
}

static void read_responses(json & body) {
    read_files(body, "input");
    json items = json::array();
    for_each_in(body, "input", [&](json & item) {
        const auto type = text_in(item, "type");
        if (type.empty() && text_in(item, "role") == "assistant") {
            item["type"] = "message";
        }
        if (type != "reasoning" || !json_value(item, "content", json::array()).empty()) { // else it says nothing
            items.push_back(item);
        }
    });
    if (!items.empty()) {
        body["input"] = items;
    }
    const json format = json_value(json_value(body, "text", json::object()), "format", json());
    if (!format.is_null()) {
        body["response_format"] = format;
        body["response_format"]["json_schema"] = format;
    }
}

std::string server_h2o_read_dialect(const std::string & path, const std::string & text) {
    const bool has_files = path.find("/chat/completions") != std::string::npos && text.find("\"file\"") != std::string::npos;
    if (!is_messages(path) && !is_responses(path) && !has_files) {
        return text;
    }
    json body = json::parse(text);
    has_files ? read_files(body, "messages") : is_messages(path) ? read_messages(body) : read_responses(body);
    return body.dump();
}

// --- errors

static std::string anthropic_type(int code) {
    return code == 401 ? "authentication_error" : code == 403 ? "permission_error" : code == 404 ? "not_found_error" :
        code == 503 ? "overloaded_error" : code < 500 ? "invalid_request_error" : "api_error";
}

json server_h2o_error(const std::string & path, const json & error) {
    const int  code    = json_value(error, "code", 500);
    const auto message = text_in(error, "message");
    const bool is_long = text_in(error, "type") == "exceed_context_size_error";

    if (is_messages(path)) {
        const std::string words = !is_long ? message : string_format("prompt is too long: %d tokens > %d maximum: %s",
            error.value("n_prompt_tokens", 0), error.value("n_ctx", 0), message.c_str());
        return { { "type", "error" }, { "error", { { "type", anthropic_type(code) }, { "message", words } } } };
    }
    if (is_responses(path)) {
        return { { "error", { { "message", message }, { "type", code < 500 ? "invalid_request_error" : "server_error" },
            { "param", nullptr }, { "code", is_long ? json("context_length_exceeded") : json() } } } };
    }
    return { { "error", error } };
}

std::string server_h2o_error_event(const std::string & path, const json & error) {
    json data = server_h2o_error(path, error);
    if (is_responses(path)) {
        data = data.at("error");
        data["type"] = "error";
    }
    return is_messages(path) || is_responses(path) ?
        format_anthropic_sse({ { "event", "error" }, { "data", data } }) : format_oai_sse(data);
}

bool server_h2o_shape_error(const httplib::Request & request, httplib::Response & response) {
    const json body = json::parse_no_throw(response.body);
    if (body.is_discarded() || !body.is_object() || !body.contains("error")) {
        return false;
    }
    response.set_content(safe_json_to_str(server_h2o_error(request.path, body.at("error"))),
        "application/json; charset=utf-8");
    return true;
}
