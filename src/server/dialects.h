#pragma once

#include "json.h"

#include <string>
#include <vector>

namespace httplib {
struct Request;
struct Response;
}
struct server_task_result_cmpl_final;

// Anthropic's Messages and OpenAI's Responses, by the path of a request: what upstream's conversion to chat completions
// and back leaves out.

// A request's body with its documents as text, and the fields that the conversion takes. Throws std::invalid_argument,
// which is 400.
std::string server_h2o_read_dialect(const std::string & path, const std::string & body);

// The sentences about parts of a request that are left out, for the end of its answer.
std::vector<std::string> server_h2o_warnings(const common_json & request);

// An answer in the form of its door, or the last events of its stream, with its warnings, and why it ended.
common_json server_h2o_end(server_task_result_cmpl_final & result);

// Of several answers to a request: one of them gets the choices of the others, and all of their tokens are counted.
void server_h2o_add_choice(common_json & choices, common_json & answer, const common_json & other);

// The body of an answer that is an error, which Anthropic's clients know by the words "prompt is too long"; and as an
// event of a stream.
common_json server_h2o_error(const std::string & path, const common_json & error);
std::string server_h2o_error_event(const std::string & path, const common_json & error);

// The same, if an answer of the HTTP server has the words of an error.
bool server_h2o_shape_error(const httplib::Request & request, httplib::Response & response);
