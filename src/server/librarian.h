#pragma once

#include "json.h"

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// What is said to the librarian: another process, which keeps texts that were read (python/h2o_llama/library/librarian.py). It answers
// HTTP at a Unix-domain socket, which the environment's H2O_LLAMA_LIBRARIAN names. A message either way is a line of JSON, then bytes.

struct server_h2o_answer {
    int         status = 0;
    std::string body;

    common_json      about() const; // the line; throws common_json_error
    std::string_view bytes() const; // what follows it
};

// All of it may be called by any thread.
class server_h2o_librarian {
public:
    // this process has one, or none
    static server_h2o_librarian & get();

    // whether this process was started with one, and whether it is not gone
    bool was_there() const { return !path.empty(); }
    bool is_there() const { return !is_gone; }

    // Its answer. None if it is gone, or says nothing for that many seconds: this is logged, and it is not asked again.
    std::optional<server_h2o_answer> ask(const std::string & what, const common_json & about, const std::vector<std::string_view> & bytes, int n_seconds);

private:
    server_h2o_librarian();

    std::string       path; // of the socket
    std::atomic<bool> is_gone;
};
