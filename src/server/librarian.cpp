#include "server/librarian.h"

#include "http.h"
#include "log.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

common_json server_h2o_answer::about() const {
    return common_json::parse(body.substr(0, body.find('\n')));
}

std::string_view server_h2o_answer::bytes() const {
    const size_t end = body.find('\n');

    return end == std::string::npos ? std::string_view() : std::string_view(body).substr(end + 1);
}

server_h2o_librarian & server_h2o_librarian::get() {
    static server_h2o_librarian res;
    return res;
}

server_h2o_librarian::server_h2o_librarian() {
    const char * named = std::getenv("H2O_LLAMA_LIBRARIAN");

    path    = named ? named : "";
    is_gone = path.empty();
}

std::optional<server_h2o_answer> server_h2o_librarian::ask(const std::string & what, const common_json & about,
        const std::vector<std::string_view> & bytes, int n_seconds) {
    if (is_gone) {
        return std::nullopt;
    }
    const std::string line = about.dump_safe() + "\n"; // a text may end in the middle of a character

    std::vector<std::string_view> parts = { line };
    parts.insert(parts.end(), bytes.begin(), bytes.end());

    size_t n_bytes = 0;
    for (const auto & part : parts) {
        n_bytes += part.size();
    }
    const auto write = [&](size_t offset, size_t length, httplib::DataSink & sink) {
        for (const auto & part : parts) {
            if (offset < part.size()) {
                return sink.write(part.data() + offset, std::min(length, part.size() - offset));
            }
            offset -= part.size();
        }
        return false;
    };

    httplib::Client client(path, 80); // a socket has no port
    client.set_address_family(AF_UNIX);
    client.set_read_timeout(n_seconds);
    client.set_write_timeout(n_seconds);
    client.set_payload_max_length(SIZE_MAX); // a state may take gigabytes

    auto result = client.Post("/" + what, n_bytes, write, "application/octet-stream");
    if (!result) {
        if (!is_gone.exchange(true)) {
            LOG_ERR("the library is off: its process does not answer (%s). Texts are read without it until the server "
                    "is started again\n",
                httplib::to_string(result.error()).c_str());
        }
        return std::nullopt;
    }
    n_removes += what == "remove" && result->status == 200;
    return server_h2o_answer{ result->status, std::move(result->body) };
}
