#pragma once

#include "common.h"
#include "server-http.h"

#include <string>

// What the threads of HTTP ask Python (server/texts.h). params must outlive the handlers.

// GET /h2o/library lists the texts of the asking key; GET and DELETE /h2o/library/{id} give the tokens of one and remove it.
server_http_context::handler_t server_h2o_library_route(const common_params & params, bool has_id, bool removes);

// POST /h2o/document?name=… gives the text of the file that the body is.
server_http_context::handler_t server_h2o_document_route();

// The text of a file. Throws std::invalid_argument if it has none that can be read.
std::string server_h2o_document_text(const std::string & name, const std::string & content);

// GET /v1/models/NAME, one of those that `models` lists.
server_http_context::handler_t server_h2o_model_route(server_http_context::handler_t models);

// A handler's answer to a request, whose owner the handler's thread knows (server/requests.h).
//
// Clients hang up after some minutes without a byte. If a stream takes a second to begin, or another answer takes 30 s
// ("sse_ping_interval"), it gets its headers then, and a comment or white space at each interval until it begins. Its
// status is 200: an error travels in the body.
server_http_res_ptr server_h2o_answer(const server_http_context::handler_t & handler, const server_http_req & request);
