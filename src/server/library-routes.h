#pragma once

#include "common.h"
#include "server-http.h"

// What the server's page sees. params must outlive the handlers.

// GET /h2o/library lists the texts of the asking key; GET and DELETE /h2o/library/{id} give the tokens of one and remove it.
server_http_context::handler_t server_h2o_library_route(const common_params & params, bool has_id, bool removes);

// POST /h2o/document?name=… gives the text of the file that the body is.
server_http_context::handler_t server_h2o_document_route();

// GET /v1/models/NAME, one of those that `models` lists.
server_http_context::handler_t server_h2o_model_route(server_http_context::handler_t models);
