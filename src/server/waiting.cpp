#include "server/routes.h"

#include "server/dialects.h"
#include "server/requests.h"

#include "server-common.h"

#include <chrono>
#include <exception>
#include <future>
#include <utility>

using seconds = std::chrono::seconds;

server_http_res_ptr server_h2o_answer(const server_http_context::handler_t & handler, const server_http_req & request) {
    const_cast<server_http_req &>(request).body = server_h2o_read_dialect(request.path, request.body);
    const auto owner = server_h2o_owner_of(server_h2o_owner(), request.get_param("cache_salt"), request.body);
    auto answer = std::async(std::launch::async, [&, owner] {
        server_h2o_set_owner(owner);
        return handler(request);
    });
    if (answer.wait_for(seconds(1)) == std::future_status::ready) {
        return answer.get();
    }
    const json body      = json::parse_no_throw(request.body);
    const bool is_stream = body.is_object() && json_value(body, "stream", false);
    const auto interval  = seconds(body.is_object() ? json_value(body, "sse_ping_interval", 30) : 30);
    if (interval <= seconds(0) || (!is_stream && answer.wait_for(interval) == std::future_status::ready)) {
        return answer.get();
    }
    const auto told = [is_stream, path = request.path](const json & error) {
        return is_stream ? server_h2o_error_event(path, error) : safe_json_to_str(server_h2o_error(path, error));
    };
    // the end of the last one waits for the handler's thread, which notices that the client has left
    const auto waiting  = std::make_shared<std::future<server_http_res_ptr>>(std::move(answer));
    const auto response = std::make_shared<server_http_res_ptr>();

    auto res = std::make_unique<server_http_res>();
    res->content_type = is_stream ? "text/event-stream" : res->content_type;
    res->next = [=, has_begun = false](std::string & output) mutable {
        if (!*response && (!std::exchange(has_begun, true) || waiting->wait_for(interval) != std::future_status::ready)) {
            output = is_stream ? ":\n\n" : " ";
            return true;
        }
        try {
            *response = *response ? std::move(*response) : waiting->get();
        } catch (const std::exception & e) {
            output = told(format_error_response(e.what(), (error_type) server_h2o_error_type(e)));
            return false;
        }
        if ((*response)->is_stream()) {
            return (*response)->next(output);
        }
        output = (*response)->status < 400 ? (*response)->data : told(json::parse((*response)->data).at("error"));
        return false;
    };
    return res;
}
