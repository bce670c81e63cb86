#pragma once

#include "server-http.h"

// A handler's answer to a request, whose headers the handler's thread knows (server/day.h).
//
// Clients hang up after some minutes without a byte. If a stream takes a second to begin, or another answer takes 30 s
// ("sse_ping_interval"), it gets its headers then, and a comment or white space at each interval until it begins. Its
// status is 200: an error travels in the body.
server_http_res_ptr server_h2o_answer(const server_http_context::handler_t & handler, const server_http_req & request);
