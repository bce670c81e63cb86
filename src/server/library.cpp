#include "server/library.h"

#include "server/browsers.h"

#include "log.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>

// how long the server's loop waits for the library at a time, if it has nothing else to do
static constexpr auto A_MOMENT = std::chrono::milliseconds(10);

static server_h2o_texts * texts_of_server = nullptr;

server_h2o_texts * server_h2o_get_texts() {
    return texts_of_server;
}

void server_h2o_set_texts(server_h2o_texts * texts) {
    texts_of_server = texts;
}

server_h2o_texts * server_h2o_kept_texts(const common_params & params) {
    auto * texts = server_h2o_get_texts();
    return texts && texts->has_library && (!params.api_keys.empty() || server_h2o_is_local(params)) ? texts : nullptr;
}

void server_h2o_library::init(const common_params & params, bool has_draft_model) {
    if (!server_h2o_get_texts() || !server_h2o_get_texts()->has_library || texts) {
        return;
    }
    if (!server_h2o_kept_texts(params)) {
        LOG_ERR("the library is off: others can reach this server, and it asks for no API key\n");
        return;
    }
    const auto & adapters = params.lora_adapters;

    const auto has_invocation = [](const auto & adapter) {
        return llama_adapter_get_alora_n_invocation_tokens(adapter.ptr) > 0;
    };

    if (has_draft_model || std::any_of(adapters.begin(), adapters.end(), has_invocation)) {
        LOG_ERR("the library is off: it keeps no texts of draft models and of adapters that are applied to a part of a "
                "text\n");
        return;
    }
    texts = server_h2o_kept_texts(params);
    for (const auto & adapter : adapters) {
        scales.push_back(adapter.scale);
    }
}

bool server_h2o_library::is_of_this_model(const server_h2o_adapters & adapters) const {
    const auto is_same = [](const auto & adapter, float scale) { return adapter.scale == scale; };

    return std::equal(adapters.begin(), adapters.end(), scales.begin(), scales.end(), is_same);
}

static bool is_done(const std::future<std::optional<server_h2o_stored_text>> & answer) {
    return answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void server_h2o_library::leave(llama_seq_id id) {
    if (auto it = asked.find(id); it != asked.end()) {
        left.push_back(std::move(it->second.found));
        asked.erase(it);
    }
    left.remove_if(is_done);
}

bool server_h2o_library::is_ready(llama_seq_id id, const std::string & key, const llama_tokens & prompt, int32_t n_past,
        int32_t n_ctx, bool is_alone) try {
    const int32_t n_shared = n_past + texts->n_new;
    if ((int32_t) prompt.size() < n_shared) {
        return true;
    }
    auto it = asked.find(id);
    if (it == asked.end()) {
        const auto ask = [texts = texts, key, prompt, n_shared, n_ctx] {
            return texts->take(key, prompt, n_shared, n_ctx);
        };
        it = asked.emplace(id, question { key, std::async(std::launch::async, ask) }).first;
    }
    if (is_alone) {
        it->second.found.wait_for(A_MOMENT);
    }
    return is_done(it->second.found);
} catch (const std::exception & e) { // no thread to ask with
    LOG_ERR("slot %d: %s: nothing is taken from the library\n", id, e.what());
    return true;
}

std::optional<llama_tokens> server_h2o_library::take(llama_context * ctx, llama_seq_id id) try {
    const auto it = asked.find(id);
    if (it == asked.end()) {
        return std::nullopt;
    }
    auto question = std::move(it->second);
    asked.erase(it);

    auto text = question.found.get();
    if (!text) {
        return std::nullopt;
    }
    const auto & res = text->tokens;
    auto *       memory  = llama_get_memory(ctx);
    const size_t n_state = llama_state_seq_set_data(ctx, text->state.get(), text->n_state, id);
    if (n_state != text->n_state || llama_memory_seq_pos_max(memory, id) != (llama_pos) res.size() - 1 ||
        llama_memory_seq_pos_min(memory, id) < 0) {
        LOG_ERR("slot %d: a text of the library is refused: it is read again\n", id);
        return llama_tokens();
    }
    known.insert_or_assign(id, std::pair(question.key, res));
    return std::move(text->tokens);
} catch (const std::exception & e) { // there is not enough memory
    LOG_ERR("slot %d: %s: nothing is taken from the library\n", id, e.what());
    return std::nullopt;
}

bool server_h2o_library::is_known(llama_seq_id id, const std::string & key, const llama_tokens & tokens) {
    if (const int n = texts->n_removed; n != n_removed) {
        known.clear(); // a removed text is kept again
        n_removed = n;
    }
    const auto it = known.find(id);
    if (it == known.end() || it->second.first != key) {
        return false;
    }
    const auto & text = it->second.second;
    return tokens.end() - std::mismatch(tokens.begin(), tokens.end(), text.begin(), text.end()).first < texts->n_new;
}

bool server_h2o_library::is_aside(const std::string & key, const llama_tokens & tokens, size_t n_prompt, size_t n_cached,
        const common_chat_msg_spans & messages) {
    static constexpr ptrdiff_t N_COMPARED = 16, N_PLACES = 32, N_ANSWER = 4, N_CONVERSATIONS = 16;

    const auto count = [](auto begin, auto end, auto first, ptrdiff_t n) { // how often these n tokens are there
        int res = 0;
        while ((begin = std::search(begin, end, first, first + n)) != end) {
            ++begin;
            ++res;
        }
        return res;
    };
    const auto begin = tokens.begin(), end = begin + std::min(n_prompt, tokens.size());

    const auto is_inside = [&](const conversation & other) {
        const auto & text = other.tokens;
        // The end of its answer, but for tokens that other words may join. A document may have it, too.
        const ptrdiff_t n_answer = std::min((ptrdiff_t) (text.size() - other.n_prompt) - 3, N_COMPARED);
        if (other.key != key || n_answer < N_ANSWER || end - begin < N_PLACES ||
            std::mismatch(begin, end, text.begin(), text.end()).first - begin >= (end - begin)/2) {
            return false;
        }
        const auto answer = text.end() - 2 - n_answer;
        if (count(begin, end, answer, n_answer) <=
            count(text.begin(), text.begin() + other.n_prompt, answer, n_answer)) {
            return false;
        }
        int n_found = 0;
        for (ptrdiff_t i = 0; i < N_PLACES; ++i) {
            n_found += count(text.begin(), text.end(), begin + (end - begin - N_COMPARED)*i/N_PLACES, N_COMPARED) > 0;
        }
        return n_found >= N_PLACES*3/4;
    };
    if ((int32_t) tokens.size() < texts->n_least) {
        return false;
    }
    const auto answers = std::count_if(messages.spans.begin(), messages.spans.end(),
        [](const auto & span) { return span.role == COMMON_CHAT_ROLE_ASSISTANT; }); // the one that comes is the last
    if (answers < 2 && n_cached < n_prompt/2 && std::any_of(conversations.begin(), conversations.end(), is_inside)) {
        return true;
    }
    conversations.push_back({ key, tokens, std::min(n_prompt, tokens.size()) });
    if (conversations.size() > N_CONVERSATIONS) {
        conversations.pop_front();
    }
    return false;
}

void server_h2o_library::give(
        llama_context * ctx, llama_seq_id id, const std::string & key, const llama_tokens & tokens) try {
    const int32_t n = tokens.size();

    // after a call that failed the sequence may have fewer tokens
    if (n < texts->n_least || llama_memory_seq_pos_max(llama_get_memory(ctx), id) != n - 1) {
        return;
    }
    const auto * kv = llama_get_h2o_kv_seq(ctx, id);
    if ((kv && llama_h2o_kv_info(kv).exact_end < UINT32_MAX) || is_known(id, key, tokens)) { // it was put together
        return;
    }
    const llama_tokens first(tokens.begin(), tokens.begin() + std::min(n, texts->n_name));

    server_h2o_given_text given;
    given.slot   = id;
    given.tokens = tokens;
    given.key    = key;
    given.begin  = common_detokenize(ctx, first, /*special =*/ false);
    given.layout  = h2o_state_layout_of(ctx, id);
    given.n_state = given.layout.n_bytes;
    given.state.reset(new uint8_t[given.n_state]);

    auto state = h2o_copy_state(ctx, id, given.state.get(), given.n_state);
    known.insert_or_assign(id, std::pair(key, tokens));
    copies.insert_or_assign(id, copied_text { ctx, std::move(given), std::move(state) });
} catch (const std::exception & e) { // there is not enough memory, or a cold store cannot be read
    LOG_ERR("slot %d: %s: this text is not kept\n", id, e.what());
}

void server_h2o_library::copy_next(llama_seq_id id, size_t n) {
    const auto it = copies.find(id);
    if (it == copies.end()) {
        return;
    }
    auto & [ctx, text, state] = it->second;
    // not if a call that failed has cleared its slots
    const bool is_there = llama_memory_seq_pos_max(llama_get_memory(ctx), id) == (llama_pos) text.tokens.size() - 1;
    if (is_there && state->next(n)) {
        return;
    }
    if (!is_there) {
        known.erase(id);
    } else try {
        texts->give(std::move(text));
    } catch (const std::exception & e) { // a thread to write with cannot be started
        LOG_ERR("slot %d: %s: this text is not kept\n", id, e.what());
    }
    copies.erase(it);
}

void server_h2o_library::copy(llama_seq_id changing) {
    using clock = std::chrono::steady_clock;

    finish(changing);
    const auto begin = clock::now();
    const auto end   = begin + (begin - last_copy)/3; // the step before has taken the time since then
    while (!copies.empty() && clock::now() < end) {
        copy_next(copies.begin()->first, 1 << 20);
    }
    last_copy = clock::now();
}

void server_h2o_library::finish(llama_seq_id id) {
    copy_next(id, SIZE_MAX);
}

void server_h2o_library::finish() {
    while (!copies.empty()) {
        finish(copies.begin()->first);
    }
}
