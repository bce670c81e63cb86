#include "server/thoughts.h"

#include "common.h"
#include "hash/hash.h"
#include "json.h"
#include "server/requests.h"

#include <algorithm>
#include <cstddef>
#include <list>
#include <mutex>
#include <utility>

static constexpr size_t MOST_BYTES = 16 << 20;

static std::mutex mutex;
static std::list<std::pair<std::string, std::string>> kept; // by the names of chats, the last used first
static size_t n_bytes = 0;

// the name of a chat with a message more; ids and thoughts do not count
static std::string name_of(const std::string & chat, const common_chat_msg & message) {
    std::string said = chat + "\n" + message.role + "\n" + string_strip(message.render_content());
    for (const auto & call : message.tool_calls) {
        const auto given = common_json::parse_no_throw(call.arguments);
        said += "\n" + call.name + "\n" + (given.is_discarded() ? call.arguments : given.dump_safe());
    }
    return hash_sha256_hex(said.data(), said.size());
}

static auto find(const std::string & name) {
    return std::find_if(kept.begin(), kept.end(), [&](const auto & entry) { return entry.first == name; });
}

std::string server_h2o_recall_thoughts(common_chat_templates_inputs & inputs) {
    const auto keeps = inputs.chat_template_kwargs.find("preserve_reasoning");
    const bool is_off = keeps != inputs.chat_template_kwargs.end() && keeps->second == "false";

    std::lock_guard<std::mutex> lock(mutex);
    std::string chat = server_h2o_owner();
    for (auto & message : inputs.messages) {
        chat = name_of(chat, message);
        if (const auto entry = is_off || !message.reasoning_content.empty() ? kept.end() : find(chat); entry != kept.end()) {
            message.reasoning_content = entry->second;
            kept.splice(kept.begin(), kept, entry);
        }
    }
    return chat;
}

void server_h2o_keep_thoughts(const std::string & chat, const common_chat_msg & answer) {
    if (chat.empty() || answer.reasoning_content.empty()) {
        return;
    }
    const auto name = name_of(chat, answer);

    std::lock_guard<std::mutex> lock(mutex);
    kept.emplace_front(name, answer.reasoning_content);
    n_bytes += name.size() + answer.reasoning_content.size();
    for (; n_bytes > MOST_BYTES; kept.pop_back()) {
        n_bytes -= kept.back().first.size() + kept.back().second.size();
    }
}
