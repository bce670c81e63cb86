#include "server/waiting.h"

#include "server/day.h"
#include "server/dialects.h"
#include "server/requests.h"

#include "server-common.h"

#include <chrono>
#include <exception>
#include <future>
#include <utility>

using seconds = std::chrono::seconds;

namespace {

class late_answer {
public:
    late_answer(std::future<server_http_res_ptr> && answer, const std::string & path, bool is_stream, seconds interval)
        : answer(std::move(answer)), path(path), is_stream(is_stream), interval(interval) {}

    // Sends something at once. Returns whether there is more.
    bool next(std::string & output) {
        if (!response && (!std::exchange(has_begun, true) || answer.wait_for(interval) != std::future_status::ready)) {
            output = is_stream ? ":\n\n" : " ";
            return true;
        }
        try {
            response = response ? std::move(response) : answer.get();
        } catch (const std::exception & e) {
            output = told(format_error_response(
                e.what(), server_h2o_is_ours(e) ? ERROR_TYPE_SERVER : ERROR_TYPE_INVALID_REQUEST));
            return false;
        }
        if (response->is_stream()) {
            return response->next(output);
        }
        output = response->status < 400 ? response->data : told(json::parse(response->data).at("error"));
        return false;
    }

private:
    std::string told(const json & error) const {
        return is_stream ? server_h2o_error_event(path, error) : safe_json_to_str(server_h2o_error(path, error));
    }

    std::future<server_http_res_ptr> answer; // its end waits for the thread, which sees that the client is gone
    server_http_res_ptr              response;

    const std::string path;
    const bool        is_stream;
    const seconds     interval;
    bool              has_begun = false;
};

} // namespace

server_http_res_ptr server_h2o_answer(const server_http_context::handler_t & handler, const server_http_req & request) {
    const_cast<server_http_req &>(request).body = server_h2o_read_dialect(request.path, request.body);
    auto answer = std::async(std::launch::async, [&] {
        const server_h2o_headers headers(request.headers);
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
    auto res = std::make_unique<server_http_res>();
    res->content_type = is_stream ? "text/event-stream" : res->content_type;
    const auto late = std::make_shared<late_answer>(std::move(answer), request.path, is_stream, interval);
    res->next = [late](std::string & output) { return late->next(output); };
    return res;
}
