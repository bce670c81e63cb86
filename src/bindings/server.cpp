// llama-server in this process, with Python's library.

#include "bindings/bindings.h"

#include "server/texts.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

int llama_server(int argc, char ** argv); // upstream's

using token_array = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

// The server's threads have no GIL. What Python raises is a std::exception to them.
class python_texts : public server_h2o_texts {
public:
    explicit python_texts(const py::object & texts) : texts(texts) {
        has_library = texts.attr("has_library").cast<bool>();
        n_least     = texts.attr("n_least").cast<int32_t>();
        n_new       = texts.attr("n_new").cast<int32_t>();
        n_name      = texts.attr("n_name").cast<int32_t>();
        tells_day   = texts.attr("tells_day").cast<bool>();
        marks       = texts.attr("marks").cast<std::vector<int32_t>>();
    }

    std::optional<server_h2o_stored_text> take(const std::string & key, const std::vector<llama_token> & prompt,
            int32_t n_least, int32_t n_ctx) override {
        py::gil_scoped_acquire gil;
        const py::object found = texts.attr("take")(key, token_array(prompt.size(), prompt.data()), n_least, n_ctx);
        if (found.is_none()) {
            return std::nullopt;
        }
        const auto [ids, state] = found.cast<std::pair<token_array, py::bytes>>();
        const std::string_view bytes = state;

        server_h2o_stored_text res;
        res.tokens.assign(ids.data(), ids.data() + ids.size());
        py::gil_scoped_release release; // it may be gigabytes
        res.n_state = bytes.size();
        res.state.reset(new uint8_t[bytes.size()]);
        std::copy(bytes.begin(), bytes.end(), res.state.get());
        return res;
    }

    void give(server_h2o_given_text text) override {
        py::gil_scoped_acquire gil;
        py::list rows;
        for (const auto & r : text.layout.rows) {
            rows.append(py::make_tuple(r.offset, r.first, r.n, r.row_bytes));
        }
        const token_array ids(text.tokens.size(), text.tokens.data());
        const py::capsule owner(text.state.get(), [](void * state) { delete[] (uint8_t *) state; });
        const py::array_t<uint8_t> state(text.n_state, text.state.release(), owner);

        texts.attr("give")(text.slot, text.key, ids, state, rows, text.layout.points, said(text.begin));
    }

    int64_t time(const std::string & key, int64_t now,
            const std::function<std::vector<llama_token>(int64_t)> & prompt_at) override {
        py::gil_scoped_acquire gil;
        const auto ids_at = py::cpp_function([&](int64_t time) {
            const auto tokens = prompt_at(time);
            return token_array(tokens.size(), tokens.data());
        });
        return texts.attr("time")(key, now, ids_at).cast<int64_t>();
    }

    std::pair<int, std::string> answer(
            const std::string & key, const std::optional<std::string> & id, bool removes) override {
        py::gil_scoped_acquire gil;
        auto res = texts.attr("answer")(key, id, removes).cast<std::pair<int, std::string>>();
        n_removed += removes && res.first == 200;
        return res;
    }

    std::string like(const std::string & key, const std::vector<llama_token> & prompt) override {
        py::gil_scoped_acquire gil;
        return texts.attr("like")(key, token_array(prompt.size(), prompt.data())).cast<std::string>();
    }

    std::pair<int, std::string> read(const std::string & name, const std::string & content) override {
        py::gil_scoped_acquire gil;
        return texts.attr("read")(said(name), py::bytes(content)).cast<std::pair<int, std::string>>();
    }

private:
    const py::object & texts; // the caller's

    static py::str said(const std::string & text) { // it may end in the middle of a character
        return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(text.data(), text.size(), "replace"));
    }
};

static int serve(const std::vector<py::bytes> & given, const py::object & texts) {
    std::vector<std::string> arguments(given.begin(), given.end());
    std::vector<char *> argv;
    for (auto & argument : arguments) {
        argv.push_back(argument.data());
    }
    python_texts kept(texts);
    server_h2o_set_texts(&kept);
    py::gil_scoped_release release;
    return llama_server(argv.size(), argv.data());
}

void init_server(py::module_ & m) {
    m.def("serve", &serve, py::arg("arguments"), py::arg("texts"),
        "Run llama-server with these arguments, the first its name, until a signal ends it. Returns its exit code.");
}
