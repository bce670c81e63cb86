#include "server/library-routes.h"

#include "server/librarian.h"
#include "server/library.h"

#include "server-common.h"

#include <memory>
#include <optional>
#include <string>

static constexpr int N_SECONDS = 90; // another program may be writing to it

static server_http_res_ptr failed(const std::string & message, error_type type) {
    const auto error = format_error_response(message, type);

    auto res = std::make_unique<server_http_res>();
    res->status = error.at("code").get<int>();
    res->data   = safe_json_to_str({ { "error", error } });
    return res;
}

server_http_context::handler_t server_h2o_library_route(const common_params & params, const char * what) {
    return [&params, what](const server_http_req & request) {
        auto & librarian = server_h2o_librarian::get();

        if (!librarian.was_there() || !server_h2o_may_have_library(params)) {
            return failed("this server has no library: start it with `h2o-llama serve`, without --library off; where "
                "others can reach it, with --api-key", ERROR_TYPE_NOT_SUPPORTED);
        }
        const auto key = server_h2o_owner(params, request);

        auto answer = librarian.ask(what, { { "key", key }, { "id", request.get_param("id") } }, {}, N_SECONDS);
        if (!answer) {
            return failed("the library does not answer: start the server again", ERROR_TYPE_UNAVAILABLE);
        }
        auto res = std::make_unique<server_http_res>();
        res->status = answer->status;
        res->data   = std::move(answer->body);
        return res;
    };
}
