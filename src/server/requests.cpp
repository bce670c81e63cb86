#include "server/requests.h"

#include "chat/nulls.h"

#include "hash/hash.h"
#include "mtmd.h"
#include "server-common.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>

static const char * PIECES = "h2o_pieces";

// The middleware has admitted the request: one of its headers is a key.
static std::string key_of(const common_params & params, const std::map<std::string, std::string> & headers) {
    static const std::string prefix = "Bearer ";
    for (const auto & [name, value] : headers) {
        const auto key = value.compare(0, prefix.size(), prefix) == 0 ? value.substr(prefix.size()) : value;
        if (std::find(params.api_keys.begin(), params.api_keys.end(), key) != params.api_keys.end()) {
            return key;
        }
    }
    return "";
}

std::string server_h2o_owner(
        const common_params & params, const std::map<std::string, std::string> & headers, const common_json & salt) {
    if (!salt.is_string() && !salt.is_null()) {
        throw std::invalid_argument("'cache_salt' must be a string, but got " + salt.dump_safe());
    }
    const auto key = key_of(params, headers);
    return salt.is_null() || salt == "" ? key : key + "\n" + salt.get<std::string>(); // a header is one line
}

std::string server_h2o_slot_path(const common_params & params, const std::string & owner) {
    if (owner.empty()) {
        return params.slot_save_path;
    }
    const auto path = params.slot_save_path + hash_sha256_hex(owner.data(), owner.size()) + "/";
    std::filesystem::create_directory(path);
    return path;
}

common_json server_h2o_pieces_to_json(const std::vector<h2o_chat_piece> & pieces) {
    common_json result = common_json::array();
    for (const auto & piece : pieces) {
        result.push_back(common_json { { "text", piece.text }, { "parse_special", piece.parse_special } });
    }
    return result;
}

std::vector<h2o_chat_piece> server_h2o_pieces_of(const common_json & request) {
    std::vector<h2o_chat_piece> pieces;
    if (request.contains(PIECES)) {
        for (const auto & piece : request.at(PIECES)) {
            pieces.push_back({ piece.at("text").get<std::string>(), piece.at("parse_special").get<bool>() });
        }
    }
    return pieces;
}

int32_t server_h2o_tokenize_media(const mtmd_context * ctx, mtmd_input_chunks * output,
        const std::vector<h2o_chat_piece> & pieces, const std::string & marker,
        const std::vector<const mtmd_bitmap *> & files) {
    std::vector<mtmd_input_text> texts;
    std::vector<mtmd_input_part> parts;
    size_t n_markers = 0;

    texts.reserve(pieces.size() + files.size()); // each marker makes one more
    for (const auto & piece : pieces) {
        for (size_t begin = 0;;) {
            const size_t end = std::min(piece.text.find(marker, begin), piece.text.size());
            if (end > begin) {
                texts.push_back({ piece.text.data() + begin, end - begin, false, piece.parse_special });
                parts.push_back({ &texts.back(), nullptr });
            }
            if (end == piece.text.size()) {
                break;
            }
            if (++n_markers > files.size()) {
                return 1;
            }
            parts.push_back({ nullptr, files[n_markers - 1] });
            begin = end + marker.size();
        }
    }
    if (n_markers != files.size()) {
        return 1;
    }
    std::vector<const mtmd_input_part *> pointers;
    for (const auto & part : parts) {
        pointers.push_back(&part);
    }
    return mtmd_tokenize_from_parts(ctx, output, pointers.data(), pointers.size(), true);
}

void server_h2o_read_chat(common_json & body) {
    h2o_chat_remove_nulls(body);

    const auto field = [&](const char * name) { return body.value(name, common_json()); };
    const auto check = [&](const char * name, const char * expected, bool is_good) {
        if (!is_good) {
            throw std::invalid_argument(
                std::string("'") + name + "' must be " + expected + ", but got " + field(name).dump_safe());
        }
    };
    const auto is_text = [](const common_json & value) { return value.is_string() && value != ""; };

    const auto kwargs = field("chat_template_kwargs"), format = field("response_format"),
               logprobs = field("logprobs"), top = field("top_logprobs");

    check("messages", "a list of messages, not empty", // they may be large: no copy
        body.contains("messages") && body.at("messages").is_array() && !body.at("messages").empty());
    check("chat_template_kwargs", "an object", kwargs.is_null() || kwargs.is_object());
    if (is_text(field("grammar"))) { // of the client: an end of thoughts that it does not describe cannot be written
        for (const char * name : { "reasoning_budget_tokens", "thinking_budget_tokens" }) {
            check(name, "left out: 'grammar' says how long thoughts are", field(name).is_null());
        }
        body["reasoning_budget_tokens"] = INT32_MAX;
    }

    const auto type = format.value("type", common_json()), wrapped = format.value("json_schema", common_json());
    check("response_format", "{\"type\": \"text\"}, {\"type\": \"json_object\", \"schema\": {...}} or "
        "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {...}}}",
        format.is_null() || type == "text" ||
        (type == "json_object" && format.value("schema", common_json::object()).is_object()) ||
        (type == "json_schema" && wrapped.value("schema", common_json()).is_object()));

    check("logprobs", "true or false", logprobs.is_null() || logprobs.is_boolean());
    const bool has_logprobs = logprobs.is_boolean() && logprobs.get<bool>();
    check("top_logprobs", "an integer from 0 to 20, with \"logprobs\": true", top.is_null() ||
        (has_logprobs && top.is_number_integer() && top.get<int64_t>() >= 0 && top.get<int64_t>() <= 20));
    if (has_logprobs) {
        body["n_probs"] = top.is_null() ? 1 : std::max(1, top.get<int>());
    }
    body.erase("logprobs");
    body.erase("top_logprobs");
}

void server_h2o_check_stop(const common_json & stop) {
    const auto is_text = [](const common_json & value) { return value.is_string() && value != ""; };
    if (!stop.is_null() && !is_text(stop) && !(stop.is_array() && std::all_of(stop.begin(), stop.end(), is_text))) {
        throw std::invalid_argument(
            "'stop' must be a string or a list of strings, none of them empty, but got " + stop.dump_safe());
    }
}

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

bool server_h2o_is_ours(const std::exception & error) {
    return dynamic_cast<const std::bad_alloc *>(&error) || dynamic_cast<const std::system_error *>(&error);
}
