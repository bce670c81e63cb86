#pragma once

#include "common.h"
#include "server-http.h"

// What a browser sees of the library: GET /h2o/library lists the texts of the asking key, DELETE /h2o/library/{id}
// removes one. params must outlive the handler.
server_http_context::handler_t server_h2o_library_route(const common_params & params, bool removes);

// GET /v1/models/NAME, one of those that `models` lists.
server_http_context::handler_t server_h2o_model_route(server_http_context::handler_t models);
