#pragma once

#include "chat.h"
#include "chat/messages.h"
#include "chat/pieces.h"
#include "common.h"
#include "json.h"
#include "server/dialects.h"

#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

struct mtmd_bitmap;
struct mtmd_context;
struct mtmd_input_chunks;

// Where llama-server reads OpenAI's requests as the Python interface does. All of these throw std::invalid_argument,
// which is 400.

// Whose text a request's is: its API key, if the server asks for one, and its "cache_salt", if it has one, in a line of
// its own. What one owner's requests have left in slots, caches and files does not exist for another's.
std::string server_h2o_owner(
        const common_params & params, const std::map<std::string, std::string> & headers, const common_json & salt);

template <typename Request>
std::string server_h2o_owner(
        const common_params & params, const Request & request, const common_json & body = common_json::object()) {
    const common_json salt(request.get_param("cache_salt"));
    return server_h2o_owner(params, request.headers, body.value("cache_salt", salt));
}

// The folder of an owner's slot files, with a / at its end. It is made.
std::string server_h2o_slot_path(const common_params & params, const std::string & owner);

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

// The strings at which an answer ends.
void server_h2o_check_stop(const common_json & stop);

// The message that an answer's text is, of which `so_far` is known and `added` is new. What cannot be parsed is content:
// `unparsed`, the text after the last that could be; of an answer that is not complete, nothing.
common_chat_msg server_h2o_parse(common_chat_session & session, const common_chat_input & added, bool is_partial,
        const common_chat_msg & so_far, std::string & unparsed);

// Whether an exception is about memory, files or threads, and not about what a client has sent.
bool server_h2o_is_ours(const std::exception & error);
