#pragma once

#include "chat.h"
#include "chat/messages.h"
#include "chat/pieces.h"
#include "common.h"
#include "json.h"
#include "server/answers.h"
#include "server/dialects.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

struct mtmd_bitmap;
struct mtmd_context;
struct mtmd_input_chunks;

// Where llama-server reads OpenAI's requests as the Python interface does. All of these throw std::invalid_argument,
// which is 400.

// Whose request this thread handles, "" of other threads: its API key, if the server asks for one, and its "cache_salt", if
// it has one, in a line of its own. What one owner's requests have left in slots, caches and files does not exist for
// another's.
const std::string & server_h2o_owner();
void                server_h2o_set_owner(const std::string & owner);

// The key of an admitted request: the value of one of its headers, of any name.
template <typename Headers>
std::string server_h2o_key(const common_params & params, const Headers & headers) {
    static const std::string prefix = "Bearer ";
    for (const auto & [name, value] : headers) {
        const auto key = value.compare(0, prefix.size(), prefix) == 0 ? value.substr(prefix.size()) : value;
        if (std::find(params.api_keys.begin(), params.api_keys.end(), key) != params.api_keys.end()) {
            return key;
        }
    }
    return "";
}

// The owner of a request with this key. `salt` is of its query, if its body has none.
std::string server_h2o_owner_of(const std::string & key, const std::string & salt, const std::string & body);

// The folder of the owner's slot files, with a / at its end. It is made.
std::string server_h2o_slot_path(const common_params & params);

// The pieces of a chat's prompt, between the two functions that make and tokenize it.
common_json server_h2o_pieces_to_json(const std::vector<h2o_chat_piece> & pieces);
std::vector<h2o_chat_piece> server_h2o_pieces_of(const common_json & request);

// mtmd_tokenize of a prompt in pieces, with the files in the places of the marker.
int32_t server_h2o_tokenize_media(const mtmd_context * ctx, mtmd_input_chunks * output,
        const std::vector<h2o_chat_piece> & pieces, const std::string & marker,
        const std::vector<const mtmd_bitmap *> & files);

// The number of a field. Upstream takes true for 1, 1.5 for 1 and 2^32 + 1 for 1; here these are errors. An unsigned
// field takes -1 for its largest number: a random seed.
template <typename T>
T server_h2o_number(const common_json & value) {
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (std::is_unsigned<T>::value && number == -1) {
        return std::numeric_limits<T>::max();
    }
    using limits = std::numeric_limits<T>;
    const bool is_whole = !limits::is_integer || number == std::floor(number);
    if (!is_whole || !(number >= (double) limits::lowest() && number <= (double) limits::max())) {
        const std::string expected = !limits::is_integer ? "a number of at most 3.4e38" :
            "an integer from " + std::to_string(limits::lowest()) + " to " + std::to_string(limits::max());
        throw std::invalid_argument("Value must be " + expected + ", but got " + value.dump_safe());
    }
    return value.get<T>();
}

// The body of a chat's request. Fields that are null are removed, and log-probabilities become "n_probs", the number of
// the most probable tokens that they name.
void server_h2o_read_chat(common_json & body);

// Lets a chat continue its owner's known texts: with thoughts that the client has left out, and with the day that a kept
// text has, where the template writes the date. Returns the chat's name (server/thoughts.h).
std::string server_h2o_continue(
        const llama_vocab * vocab, const common_chat_templates * templates, common_chat_templates_inputs & inputs);

// The strings at which an answer ends.
void server_h2o_check_stop(const common_json & stop);

// What an error is about, as upstream's error_type: memory, files or threads; what this server does not serve; else what a
// client has sent.
int server_h2o_error_type(const std::exception & error);

// Throws if the server has no answers.
void server_h2o_check_answers(const common_params & params);

// A request about slots, or a completion.
struct server_h2o_request {
    int32_t n_attention = 0; // of a completion with "top_attention"

    std::string owner = server_h2o_owner();
    int32_t     slot_of_owner = -1; // it is about this slot's text, < 0: about none

    // the path of a slot's file
    std::string read_file(const common_params & params, const std::string & name, int32_t slot_of_owner = -1) {
        this->slot_of_owner = slot_of_owner;
        return server_h2o_slot_path(params) + name;
    }

    // Reads a completion's request. Throws std::invalid_argument.
    void read_completion(const common_params & params, const common_json & body) {
        server_h2o_check_answers(params);
        n_attention = body.contains("top_attention") ? server_h2o_number<int32_t>(body.at("top_attention")) : 0;
        if (n_attention < 0 || n_attention > 1024) {
            throw std::invalid_argument("'top_attention' must be 0 to 1024, but got " + std::to_string(n_attention));
        }
        server_h2o_check_stop(body.value("stop", common_json()));
    }
};

// Gives an idle slot to an owner. Another's text is cleared.
template <typename Slot>
void server_h2o_own(Slot & slot, const std::string & owner) {
    if (slot.prompt.tokens.h2o_owner != owner) {
        slot.prompt_clear();
        slot.prompt.tokens.h2o_owner = owner;
    }
}

// Whether a slot, or the slot that a request is about, is the owner's, or nobody's yet.
template <typename Slot>
bool server_h2o_sees(const Slot & slot, const std::string & owner) {
    return slot.prompt.tokens.h2o_owner.empty() || slot.prompt.tokens.h2o_owner == owner;
}

template <typename Slot>
bool server_h2o_sees(const std::vector<Slot> & slots, const server_h2o_request & request) {
    const int32_t id = request.slot_of_owner;

    return id < 0 || id >= (int32_t) slots.size() || server_h2o_sees(slots[id], request.owner);
}
