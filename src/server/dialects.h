#pragma once

#include "json.h"

#include <string>

namespace httplib {
struct Request;
struct Response;
}

// Anthropic's Messages and OpenAI's Responses, by the path of a request: what upstream's conversion to chat completions
// and back leaves out.

// A request's body with its documents as text, and the fields that the conversion takes. Throws std::invalid_argument,
// which is 400.
std::string server_h2o_read_dialect(const std::string & path, const std::string & body);

// The body of an answer that is an error, which Anthropic's clients know by the words "prompt is too long"; and as an
// event of a stream.
common_json server_h2o_error(const std::string & path, const common_json & error);
std::string server_h2o_error_event(const std::string & path, const common_json & error);

// The same, if an answer of the HTTP server has the words of an error.
bool server_h2o_shape_error(const httplib::Request & request, httplib::Response & response);
