#pragma once

#include "json.h"

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Client of the librarian, another process that keeps texts (python/h2o_llama/library/_librarian.py). It answers HTTP at
// the Unix-domain socket H2O_LLAMA_LIBRARIAN (an environment variable). A message either way is a line of JSON, then
// bytes.

struct server_h2o_answer {
    int         status = 0;
    std::string body;

    common_json      about() const; // the line; throws common_json_error
    std::string_view bytes() const; // the bytes after the line
};

// All of it may be called by any thread.
class server_h2o_librarian {
public:
    // this process has one, or none
    static server_h2o_librarian & get();

    // whether this process was started with one, and whether it still answers
    bool was_there() const { return !path.empty(); }
    bool is_there() const { return !is_gone; }

    // how many texts clients have removed
    int n_removed() const { return n_removes; }

    // Its answer. None if it has ended or is silent for that many seconds: this is logged, and it is not asked again.
    std::optional<server_h2o_answer> ask(const std::string & what, const common_json & about,
        const std::vector<std::string_view> & bytes, int n_seconds);

private:
    server_h2o_librarian();

    std::string       path; // of the socket
    std::atomic<bool> is_gone;
    std::atomic<int>  n_removes = 0;
};
