#include "server/requests.h"

#include "chat/nulls.h"

#include "hash/hash.h"
#include "mtmd.h"
#include "server-common.h"
#include "server/texts.h"
#include "server/thoughts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <new>
#include <system_error>

static const char * PIECES = "h2o_pieces";

static thread_local std::string owner_of_thread;

const std::string & server_h2o_owner() {
    return owner_of_thread;
}

void server_h2o_set_owner(const std::string & owner) {
    owner_of_thread = owner;
}

std::string server_h2o_owner_of(const std::string & key, const std::string & salt, const std::string & body) {
    common_json given(salt);
    if (body.find("\"cache_salt\"") != std::string::npos) {
        const auto fields = common_json::parse_no_throw(body);
        given = fields.is_object() ? fields.value("cache_salt", given) : given;
    }
    if (!given.is_string() && !given.is_null()) {
        throw std::invalid_argument("'cache_salt' must be a string, but got " + given.dump_safe());
    }
    return given.is_null() || given == "" ? key : key + "\n" + given.get<std::string>(); // a header is one line
}

std::string server_h2o_slot_path(const common_params & params) {
    const auto & owner = server_h2o_owner();
    if (owner.empty()) {
        return params.slot_save_path;
    }
    const auto path = params.slot_save_path + hash_sha256_hex(owner.data(), owner.size()) + "/";
    std::filesystem::create_directory(path);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all); // conversations lie there
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
    const auto cut = h2o_chat_cut(pieces, marker);
    std::vector<mtmd_input_text> texts;
    std::vector<mtmd_input_part> parts;
    texts.reserve(cut.size());
    parts.reserve(cut.size());
    std::vector<const mtmd_input_part *> pointers;
    size_t n_files = 0;
    for (const auto & piece : cut) {
        if (piece.is_marker) {
            if (n_files == files.size()) {
                return 1;
            }
            parts.push_back({ nullptr, files[n_files++] });
        } else if (!piece.text.empty()) {
            texts.push_back({ piece.text.data(), piece.text.size(), false, piece.parse_special });
            parts.push_back({ &texts.back(), nullptr });
        } else {
            continue;
        }
        pointers.push_back(&parts.back());
    }
    return n_files == files.size() ? mtmd_tokenize_from_parts(ctx, output, pointers.data(), pointers.size(), true) : 1;
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
    static const std::vector<std::string> ROLES = { "system", "developer", "user", "assistant", "tool" };
    for (const auto & message : body.at("messages")) { // upstream looks at the rest
        const auto role = message.is_object() ? message.value("role", common_json()) : common_json();
        if (role.is_string() && std::find(ROLES.begin(), ROLES.end(), role.get<std::string>()) == ROLES.end()) {
            throw std::invalid_argument("'role' must be one of " + string_join(ROLES, ", ") + ", but got " + role.dump_safe());
        }
    }
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

std::string server_h2o_continue(
        const llama_vocab * vocab, const common_chat_templates * templates, common_chat_templates_inputs & inputs) {
    using clock = std::chrono::system_clock;

    const auto name = server_h2o_recall_thoughts(inputs);

    auto * texts = server_h2o_get_texts();
    if (!texts || !texts->tells_day) {
        return name;
    }
    const auto prompt_at = [&](int64_t time) {
        auto dated = inputs;
        dated.now  = clock::from_time_t(time);
        const auto prompt = common_chat_templates_apply(templates, dated).prompt;
        return h2o_chat_tokens(vocab, h2o_chat_pieces(vocab, templates, dated, prompt));
    };
    inputs.now = clock::from_time_t(texts->time(server_h2o_owner(), clock::to_time_t(inputs.now), prompt_at));
    return name;
}

namespace {
struct not_served : std::runtime_error {
    using std::runtime_error::runtime_error;
};
} // namespace

void server_h2o_check_answers(const common_params & params) {
    if (params.embedding) {
        throw not_served("This server serves embeddings, no answers. Start it without `--embeddings`");
    }
}

int server_h2o_error_type(const std::exception & error) {
    const bool is_ours = dynamic_cast<const std::bad_alloc *>(&error) || dynamic_cast<const std::system_error *>(&error);
    return is_ours ? ERROR_TYPE_SERVER :
        dynamic_cast<const not_served *>(&error) ? ERROR_TYPE_NOT_SUPPORTED : ERROR_TYPE_INVALID_REQUEST;
}
