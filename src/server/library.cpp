#include "server/library.h"

#include "server/browsers.h"

#include "log.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

static constexpr int N_SECONDS_LOAD  = 60;
static constexpr int N_SECONDS_WRITE = 300;

// how long the server's loop waits for the librarian at a time, if it has nothing else to do
static constexpr auto A_MOMENT = std::chrono::milliseconds(10);

bool server_h2o_may_have_library(const common_params & params) {
    return !params.api_keys.empty() || server_h2o_is_local(params);
}

static std::string_view bytes_of(const llama_tokens & tokens) {
    return { reinterpret_cast<const char *>(tokens.data()), tokens.size()*sizeof(llama_token) };
}

static std::string_view bytes_of(const std::vector<uint8_t> & state) {
    return { reinterpret_cast<const char *>(state.data()), state.size() };
}

server_h2o_library::~server_h2o_library() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        is_ending = true;
    }
    changed.notify_all();
    if (writer.joinable()) {
        writer.join();
    }
}

void server_h2o_library::init(const common_params & params, bool has_draft_model) {
    if (!server_h2o_librarian::get().is_there() || writer.joinable()) {
        return;
    }
    if (!server_h2o_may_have_library(params)) {
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
    const auto answer = server_h2o_librarian::get().ask("settings", common_json::object(), {}, N_SECONDS_LOAD);
    if (!answer) {
        return;
    }
    const auto about = answer->about();
    n_least = about.at("n_least").get<int32_t>();
    n_new   = about.at("n_new").get<int32_t>();
    n_name  = about.at("n_name").get<int32_t>();
    marks   = about.at("marks").get<std::vector<int32_t>>();

    scales.emplace();
    for (const auto & adapter : adapters) {
        scales->push_back(adapter.scale);
    }
    writer = std::thread(&server_h2o_library::write_texts, this);
}

bool server_h2o_library::is_on() const {
    return scales && server_h2o_librarian::get().is_there();
}

bool server_h2o_library::is_of_this_model(const server_h2o_adapters & adapters) const {
    const auto is_same = [](const auto & adapter, float scale) { return adapter.scale == scale; };

    return std::equal(adapters.begin(), adapters.end(), scales->begin(), scales->end(), is_same);
}

bool server_h2o_library::cuts(const llama_context * ctx, int32_t n_prompt, int32_t n_tokens) const {
    const bool is_place =
        n_prompt >= n_least && std::find(marks.begin(), marks.end(), n_prompt - n_tokens) != marks.end();

    return is_place && is_on() && server_h2o_enabled(ctx) && !server_h2o_goes_anywhere(ctx);
}

static bool is_done(const std::future<std::optional<server_h2o_answer>> & answer) {
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
    if ((int32_t) prompt.size() < n_past + n_new) {
        return true;
    }
    auto it = asked.find(id);
    if (it == asked.end() && is_being_written(key, prompt, n_past + n_new, is_alone)) {
        return false;
    }
    if (it == asked.end()) {
        const common_json about = { { "key", key }, { "n_least", n_past + n_new }, { "n_ctx", n_ctx } };

        const auto ask = [about, prompt] {
            return server_h2o_librarian::get().ask("take", about, { bytes_of(prompt) }, N_SECONDS_LOAD);
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
    if (it == asked.end() || !is_done(it->second.found)) { // the librarian has ended
        leave(id);
        return std::nullopt;
    }
    auto question = std::move(it->second);
    asked.erase(it);

    const auto answer = question.found.get();
    if (!answer || answer->status != 200) {
        return std::nullopt;
    }
    const size_t n_bytes = answer->about().at("n_tokens").get<int64_t>()*sizeof(llama_token);
    const auto   bytes   = answer->bytes();
    if (n_bytes == 0 || bytes.size() < n_bytes) {
        return std::nullopt;
    }
    llama_tokens res(n_bytes/sizeof(llama_token));
    std::memcpy(res.data(), bytes.data(), n_bytes);

    const auto   state   = bytes.substr(n_bytes);
    auto *       memory  = llama_get_memory(ctx);
    const size_t n_state =
        llama_state_seq_set_data(ctx, reinterpret_cast<const uint8_t *>(state.data()), state.size(), id);
    if (n_state != state.size() || llama_memory_seq_pos_max(memory, id) != (llama_pos) res.size() - 1 ||
        llama_memory_seq_pos_min(memory, id) < 0) {
        LOG_ERR("slot %d: a text of the library is refused: it is read again\n", id);
        return llama_tokens();
    }
    set_known(id, question.key, res);
    return res;
} catch (const std::exception & e) { // there is not enough memory
    LOG_ERR("slot %d: %s: nothing is taken from the library\n", id, e.what());
    return std::nullopt;
}

static common_json points_of(llama_context * ctx, llama_seq_id id) {
    std::vector<llama_h2o_points> points(llama_h2o_state_points(ctx, id, nullptr, 0));
    llama_h2o_state_points(ctx, id, points.data(), points.size());

    auto res = common_json::array();
    for (const auto & [first, last] : points) {
        res.push_back(common_json::array({ first, last }));
    }
    return res;
}

static common_json rows_of(llama_context * ctx, llama_seq_id id) {
    std::vector<llama_h2o_rows> rows(llama_h2o_state_rows(ctx, id, nullptr, 0));
    rows.resize(std::min(rows.size(), llama_h2o_state_rows(ctx, id, rows.data(), rows.size())));

    auto res = common_json::array();
    for (const auto & r : rows) {
        res.push_back(common_json::array({ r.offset, r.first, r.n, r.row_bytes }));
    }
    return res;
}

bool server_h2o_library::is_being_written(
        const std::string & key, const llama_tokens & prompt, int32_t n_shared, bool is_alone) {
    const auto has_it = [&](const given_text & text) {
        const auto [end, _] =
            std::mismatch(prompt.begin(), prompt.end(), text.tokens.begin(), text.tokens.end());
        return text.key == key && end - prompt.begin() >= n_shared;
    };
    const auto is_written = [&] {
        return std::none_of(waiting.begin(), waiting.end(), [&](const auto & entry) { return has_it(entry.second); }) &&
            !(writing && has_it(*writing));
    };
    std::unique_lock<std::mutex> lock(mutex);
    return !(is_alone ? changed.wait_for(lock, A_MOMENT, is_written) : is_written());
}

void server_h2o_library::set_known(llama_seq_id id, const std::string & key, const llama_tokens & tokens) {
    std::lock_guard<std::mutex> lock(mutex);
    known.insert_or_assign(id, std::pair(key, tokens));
}

bool server_h2o_library::is_known(llama_seq_id id, const std::string & key, const llama_tokens & tokens) {
    std::lock_guard<std::mutex> lock(mutex);
    if (const int n = server_h2o_librarian::get().n_removed(); n != n_removed) {
        known.clear(); // a removed text is kept again
        n_removed = n;
    }
    const auto it = known.find(id);
    if (it == known.end() || it->second.first != key) {
        return false;
    }
    const auto & text = it->second.second;
    return tokens.end() - std::mismatch(tokens.begin(), tokens.end(), text.begin(), text.end()).first < n_new;
}

bool server_h2o_library::is_aside(const std::string & key, const llama_tokens & tokens, size_t n_prompt, size_t n_cached) {
    static constexpr ptrdiff_t N_COMPARED = 16, N_PLACES = 32, N_ANSWER = 4;

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
    if ((int32_t) tokens.size() < n_least) {
        return false;
    }
    if (n_cached < n_prompt/2 && std::any_of(conversations.begin(), conversations.end(), is_inside)) {
        return true;
    }
    conversations.push_back({ key, tokens, std::min(n_prompt, tokens.size()) });
    if (conversations.size() > N_COMPARED) {
        conversations.pop_front();
    }
    return false;
}

void server_h2o_library::give(
        llama_context * ctx, llama_seq_id id, const std::string & key, const llama_tokens & tokens) try {
    const int32_t n = tokens.size();

    // after a call that failed the sequence may have fewer tokens
    if (n < n_least || llama_memory_seq_pos_max(llama_get_memory(ctx), id) != n - 1) {
        return;
    }
    if (is_known(id, key, tokens)) {
        return;
    }
    const llama_tokens first(tokens.begin(), tokens.begin() + std::min(n, n_name));

    given_text given;
    given.about  = {
        { "key",      key },
        { "begin",    common_detokenize(ctx, first, /*special =*/ false) },
        { "n_tokens", n },
        { "rows",     rows_of(ctx, id) },
        { "points",   points_of(ctx, id) },
    };
    given.key    = key;
    given.tokens = tokens;
    given.state.resize(llama_state_seq_get_size(ctx, id));
    if (llama_state_seq_get_data(ctx, given.state.data(), given.state.size(), id) != given.state.size()) {
        LOG_ERR("slot %d: its state cannot be saved: this text is not kept\n", id);
        return;
    }
    set_known(id, key, tokens);
    {
        std::lock_guard<std::mutex> lock(mutex);
        waiting.insert_or_assign(id, std::move(given));
    }
    changed.notify_all();
} catch (const std::exception & e) { // there is not enough memory, or a cold store cannot be read
    LOG_ERR("slot %d: %s: this text is not kept\n", id, e.what());
}

// false if the librarian could not
static bool write(const common_json & about, const llama_tokens & tokens, const std::vector<uint8_t> & state) try {
    auto & librarian = server_h2o_librarian::get();

    // another slot or program may have given it
    const auto answer = librarian.ask(
        "is-new", { { "key", about.at("key").get<std::string>() } }, { bytes_of(tokens) }, N_SECONDS_WRITE);
    if (answer && answer->status == 200 && !answer->about().at("is_new").get<bool>()) {
        return true;
    }
    const auto given = librarian.ask("give", about, { bytes_of(tokens), bytes_of(state) }, N_SECONDS_WRITE);
    return given && given->status == 200;
} catch (const std::exception & e) {
    LOG_ERR("the library: %s: a text is not kept\n", e.what());
    return false;
}

void server_h2o_library::write_texts() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
        changed.wait(lock, [&] { return is_ending || !waiting.empty(); });
        if (waiting.empty()) {
            return;
        }
        const auto given = waiting.extract(waiting.begin());

        writing = &given.mapped();
        lock.unlock();
        const bool is_written = write(given.mapped().about, given.mapped().tokens, given.mapped().state);
        lock.lock();
        writing = nullptr;
        changed.notify_all();
        if (!is_written) {
            known.erase(given.key());
        }
    }
}
