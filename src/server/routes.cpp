#include "server/routes.h"

#include "server/library.h"
#include "server/requests.h"
#include "server/texts.h"

#include "server-common.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

static server_http_res_ptr failed(const std::string & message, error_type type) {
    const auto error = format_error_response(message, type);

    auto res = std::make_unique<server_http_res>();
    res->status = error.at("code").get<int>();
    res->data   = safe_json_to_str({ { "error", error } });
    return res;
}

server_http_context::handler_t server_h2o_library_route(const common_params & params, bool has_id, bool removes) {
    return [&params, has_id, removes](const server_http_req & request) {
        auto * texts = server_h2o_kept_texts(params);
        if (!texts) {
            return failed("this server has no library: start it with `h2o-llama serve`, without --library off; where "
                "others can reach it, with --api-key", ERROR_TYPE_NOT_SUPPORTED);
        }
        const auto id = has_id ? std::optional(request.get_param("id")) : std::nullopt;

        auto res = std::make_unique<server_http_res>();
        std::tie(res->status, res->data) = texts->answer(server_h2o_owner(), id, removes);
        return res;
    };
}

server_http_context::handler_t server_h2o_model_route(server_http_context::handler_t models) {
    return [models = std::move(models)](const server_http_req & request) {
        auto res = models(request);
        const auto name = request.get_param("h2o_model");
        for (const auto & model : json::parse(res->data).value("data", json::array())) {
            if (model.at("id") == name) {
                res->data = safe_json_to_str(model);
                return res;
            }
        }
        return failed("there is no model " + name.substr(0, 100), ERROR_TYPE_NOT_FOUND);
    };
}

server_http_context::handler_t server_h2o_document_route() {
    return [](const server_http_req & request) {
        auto * texts = server_h2o_get_texts();
        if (!texts) {
            return failed("this server reads no documents: start it with `h2o-llama serve`", ERROR_TYPE_NOT_SUPPORTED);
        }
        auto res = std::make_unique<server_http_res>();
        std::tie(res->status, res->data) = texts->read(request.get_param("name"), request.body);
        return res;
    };
}

std::string server_h2o_document_text(const std::string & name, const std::string & content) {
    auto * texts = server_h2o_get_texts();
    if (!texts) {
        throw std::invalid_argument("this server reads no documents: start it with `h2o-llama serve`, or send text");
    }
    const auto [status, answer] = texts->read(name, content);
    const json found = json::parse(answer);
    if (status != 200) {
        throw std::invalid_argument(found.at("error").at("message").get<std::string>());
    }
    return found.at("text").get<std::string>();
}

common_json server_h2o_texts_like(const common_params & params, const std::vector<llama_token> & prompt) {
    auto * texts = server_h2o_kept_texts(params);

    return texts ? json::parse(texts->like(server_h2o_owner(), prompt)) : json::object();
}
