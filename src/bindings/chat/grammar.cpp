#include "bindings/chat/grammar.h"

#include "bindings/llama-call.h"

#include "json-schema-to-grammar.h"

#include <pybind11/stl.h>

#include <stdexcept>

static const char * const GRAMMAR = "[grammar] ";

static constexpr size_t MAX_BYTES = 256*1024;

static void check_size(const std::string & text) {
    if (text.size() > MAX_BYTES) {
        throw std::invalid_argument(
            GRAMMAR + std::string("must be smaller than 256 KiB, got ") + std::to_string(text.size()) + " bytes");
    }
    if (text.find('\0') != std::string::npos) {
        throw std::invalid_argument(GRAMMAR + std::string("must not hold a zero byte"));
    }
}

grammar::grammar(
        std::shared_ptr<model> mdl, std::string text, bool lazy, std::vector<std::string> trigger_patterns,
        std::vector<llama_token> trigger_tokens, std::vector<llama_token> prefill)
    : text(std::move(text)), lazy(lazy), mdl(std::move(mdl)), trigger_patterns(std::move(trigger_patterns)),
      trigger_tokens(std::move(trigger_tokens)), prefill(std::move(prefill)) {
    if (llama_vocab_type(this->mdl->vocab) == LLAMA_VOCAB_TYPE_NONE) {
        throw h2o_error("[grammar] this model has no tokenizer: a grammar needs the text of tokens");
    }
    check_size(this->text);
    make_sampler();
}

std::shared_ptr<llama_sampler> grammar::make_sampler() const {
    std::vector<const char *> patterns;
    for (const auto & pattern : trigger_patterns) {
        patterns.push_back(pattern.c_str());
    }

    llama_call call(/*verbose =*/ false);
    try {
        llama_sampler * smpl = lazy
            ? llama_sampler_init_grammar_lazy_patterns(mdl->vocab, text.c_str(), "root",
                patterns.data(), patterns.size(), trigger_tokens.data(), trigger_tokens.size())
            : llama_sampler_init_grammar(mdl->vocab, text.c_str(), "root");
        if (!smpl) {
            throw std::runtime_error(call.reason());
        }
        const std::shared_ptr<llama_sampler> result(smpl, llama_sampler_free);
        for (const llama_token token : prefill) {
            llama_sampler_accept(smpl, token);
        }
        return result;
    } catch (const std::exception & e) {
        const std::string reason = e.what();
        throw std::invalid_argument(GRAMMAR + std::string("is no valid GBNF with a rule 'root': ") +
            (reason.size() > 300 ? reason.substr(0, 300) + "..." : reason));
    }
}

// GBNF for the JSON that a schema describes. Throws std::invalid_argument.
static std::string schema_to_grammar(const std::string & schema) {
    llama_call call(/*verbose =*/ false);
    try {
        return json_schema_to_grammar(common_json::parse(schema));
    } catch (const std::exception & e) {
        throw std::invalid_argument(std::string("[json_schema] cannot be made a grammar: ") + e.what());
    }
}

void init_grammar(py::module_ & m) {
    py::class_<grammar, std::shared_ptr<grammar>>(m, "Grammar")
        .def(py::init<std::shared_ptr<model>, std::string>(), py::arg("model"), py::arg("text"))
        .def_readonly("text", &grammar::text)
        .def_readonly("lazy", &grammar::lazy);
    m.def("json_schema_to_grammar", &schema_to_grammar, py::arg("schema"));
}
