#include "server/day.h"

#include "chat/pieces.h"
#include "server/requests.h"
#include "server/texts.h"

static thread_local const std::map<std::string, std::string> * current_headers = nullptr;

server_h2o_headers::server_h2o_headers(const std::map<std::string, std::string> & headers) {
    current_headers = &headers;
}

server_h2o_headers::~server_h2o_headers() {
    current_headers = nullptr;
}

std::chrono::system_clock::time_point server_h2o_time(const common_params & params, const llama_vocab * vocab,
        const common_chat_templates * templates, const common_chat_templates_inputs & inputs, const common_json & body) {
    auto * texts = server_h2o_get_texts();
    if (!texts || !texts->tells_day || !current_headers) {
        return inputs.now;
    }
    const auto prompt_at = [&](int64_t time) {
        auto dated = inputs;
        dated.now  = std::chrono::system_clock::from_time_t(time);
        const auto prompt = common_chat_templates_apply(templates, dated).prompt;
        return h2o_chat_tokens(vocab, h2o_chat_pieces(vocab, templates, dated, prompt));
    };
    const auto owner = server_h2o_owner(params, *current_headers, body.value("cache_salt", common_json()));
    const auto time  = texts->time(owner, std::chrono::system_clock::to_time_t(inputs.now), prompt_at);

    return std::chrono::system_clock::from_time_t(time);
}
