#pragma once

#include "h2o/llama/memory/state/text-state.h"
#include "llama.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

struct server_h2o_stored_text {
    std::vector<llama_token>   tokens;
    std::unique_ptr<uint8_t[]> state;
    size_t                     n_state = 0; // its bytes
};

struct server_h2o_given_text : server_h2o_stored_text {
    llama_seq_id     slot;
    std::string      key;   // of its owner
    std::string      begin; // its name is made of it
    h2o_state_layout layout;
};

// What Python does for the server (python/h2o_llama/library/_serving.py), bound by src/bindings/server.cpp: it reads
// documents, and keeps the texts that outlive a server. Any thread may call it, but a call may wait for a disk: the
// server's loop calls give() alone.
class server_h2o_texts {
public:
    virtual ~server_h2o_texts() = default;

    // the text that shares most tokens with a prompt, n_least at least, if a slot of n_ctx tokens can hold it
    virtual std::optional<server_h2o_stored_text> take(
        const std::string & key, const std::vector<llama_token> & prompt, int32_t n_least, int32_t n_ctx) = 0;

    // It is written later. If a slot gives faster than is written, its newest text is kept.
    virtual void give(server_h2o_given_text text) = 0;

    // The time, in seconds since 1970, on whose day a prompt continues a kept text; `now` if there is none. prompt_at
    // makes the prompt's tokens with the date of another time.
    virtual int64_t time(const std::string & key, int64_t now,
        const std::function<std::vector<llama_token>(int64_t)> & prompt_at) = 0;

    // what GET /h2o/library and, with an id, GET and DELETE /h2o/library/{id} answer: the HTTP status, and JSON
    virtual std::pair<int, std::string> answer(
        const std::string & key, const std::optional<std::string> & id, bool removes) = 0;

    // JSON: by the ids of texts, how many of a prompt's first tokens each has
    virtual std::string like(const std::string & key, const std::vector<llama_token> & prompt) = 0;

    // the HTTP status, and JSON with the text of a file of this name and content (documents.py)
    virtual std::pair<int, std::string> read(const std::string & name, const std::string & content) = 0;

    bool                 has_library = false; // if not, it only reads documents
    int32_t              n_least = 0; // tokens of a text that is kept
    int32_t              n_new   = 0; // tokens that must be known, which a slot has not itself
    int32_t              n_name  = 0; // tokens at the beginning of a text, which is its name
    bool                 tells_day = false; // whether the chat template writes the date
    std::vector<int32_t> marks;       // tokens before the end of a prompt, where it is cut

    std::atomic<int> n_removed = 0; // texts that clients have removed
};

// the texts of the server in this process, or none
server_h2o_texts * server_h2o_get_texts();
void               server_h2o_set_texts(server_h2o_texts * texts);
