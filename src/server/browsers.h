#pragma once

#include "common.h"

#include <string>

namespace httplib {
struct Request;
struct Response;
}

// Which web pages may use the server. A browser sends requests for any page that its user has open.

// Whether a request is answered; if not, it has been, with 403. The pages of the server itself, and of the origins in
// --cors-origins, may use it. `Host` must be an IP address, a name of this machine, of --host or of --cors-origins:
// another name is one that its owner has pointed here, and whose pages the browser takes for the server's own (DNS
// rebinding). The key of an answered one becomes the thread's owner (server/requests.h).
bool server_h2o_admits(const common_params & params, const httplib::Request & request, httplib::Response & response);

// Lets a page of one of these origins read the answer.
void server_h2o_set_origin(
        const common_params & params, const httplib::Request & request, httplib::Response & response);

// The names of headers that a page may send, for the browser that asks before it sends them.
std::string server_h2o_allowed_headers(const common_params & params, const httplib::Request & request);

// Whether only this machine's programs can reach the server.
bool server_h2o_is_local(const common_params & params);
