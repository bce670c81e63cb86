// Chat templates, and what a model's answer means, by upstream's `common`. Messages, tools and schemas are JSON.

#include "bindings/chat/grammar.h"
#include "bindings/llama-call.h"
#include "chat/messages.h"
#include "chat/nulls.h"
#include "chat/pieces.h"

#include "chat.h"
#include "common.h"
#include "log.h"
#include "sampling.h"
#include "server-chat.h"

#include <pybind11/stl.h>

#include <cctype>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

// f(); whatever upstream throws is about the caller's messages, tools or template
template <typename F>
static auto run(const std::string & what, F f, size_t max_size = std::string::npos) -> decltype(f()) {
    llama_call call(/*verbose =*/ false, llama_call::THROW);
    try {
        return f();
    } catch (const std::exception & e) {
        const std::string text = e.what();
        throw std::invalid_argument(
            "[chat] " + what + ": " + (text.size() > max_size ? text.substr(0, max_size) + "..." : text));
    }
}

// Text of an answer -> a message, piece by piece. Keeps the last message, to report the difference.
class chat_parser {
public:
    chat_parser(const common_chat_params & params, std::string id_prefix, bool continues)
        : params(params), id_prefix(std::move(id_prefix)) {
        this->params.parser = params.parser;
        if (continues) {
            begun = msg = common_chat_parse(text, true, this->params);
        }
    }

    // What a piece of text adds to the message, as JSON: a list of OpenAI's deltas. An unfinished text may end
    // anywhere.
    std::string update(const std::string & piece, bool is_partial) {
        return run("the answer does not have this model's format", [&] {
            text.append(common_chat_input(piece));

            common_chat_msg next = common_chat_parse(text, is_partial, params);
            next.set_tool_call_ids(ids, [&] { return id_prefix + std::to_string(ids.size()); });

            common_json deltas = common_json::array();
            for (const auto & diff : common_chat_msg_diff::compute_diffs(msg, next)) {
                deltas.push_back(server_chat_msg_diff_to_json_oaicompat(diff));
            }
            msg = next;
            return deltas.dump_safe();
        });
    }

    // the message so far, as JSON
    std::string message() const {
        return run("the answer does not have this model's format", [&] { return h2o_chat_added(msg, begun).to_json_oaicompat().dump_safe(); });
    }

private:
    common_chat_parser_params params;
    common_chat_msg           msg;
    common_chat_msg           begun; // the message that the answer continues
    common_chat_input         text;
    std::vector<std::string>  ids;
    const std::string         id_prefix;
};

static bool continues(const common_chat_templates_inputs & inputs) {
    return inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
}

static const char * REFUSES = "the model's chat template refuses these messages";

// Messages as a prompt, with all that its answer needs.
class chat_prompt {
public:
    chat_prompt(std::shared_ptr<model> mdl, std::shared_ptr<const common_chat_templates> templates,
        common_chat_templates_inputs inputs)
        : params(common_chat_templates_apply(templates.get(), inputs)), mdl(std::move(mdl)),
          templates(std::move(templates)), inputs(std::move(inputs)) {
        common_params_sampling found;
        common_sampling_add_preserved_tokens(found, this->mdl->vocab, params.preserved_tokens);
        common_sampling_add_grammar_triggers(found, this->mdl->vocab, params.grammar_triggers);
        preserved_tokens.assign(found.preserved_tokens.begin(), found.preserved_tokens.end());
        triggers = std::move(found.grammar_triggers);
    }

    // Token ids; -1 for each marker of an image. Names of special tokens in messages are text, unless they are to be
    // parsed.
    std::vector<llama_token> tokens(const std::string & marker, bool parse_names) const {
        return run(REFUSES, [&] {
            const std::vector<h2o_chat_piece> whole = { { params.prompt, true } };
            return h2o_chat_tokens(mdl->vocab,
                parse_names ? whole : h2o_chat_pieces(mdl->vocab, templates.get(), inputs, params.prompt), marker);
        });
    }

    // what the answer must look like; none if it may be anything
    std::shared_ptr<grammar> make_grammar() const {
        if (params.grammar.empty()) {
            return nullptr;
        }
        std::vector<std::string> patterns;
        std::vector<llama_token> tokens;
        for (const auto & trigger : triggers) {
            add_trigger(trigger, patterns, tokens);
        }
        return std::make_shared<grammar>(mdl, params.grammar, params.grammar_lazy, patterns, tokens,
            params.grammar_lazy ? std::vector<llama_token>() : prefill());
    }

    chat_parser make_parser(const std::string & id_prefix) const {
        return run("this model's format is not understood",
            [&] { return chat_parser(params, id_prefix, continues(inputs)); });
    }

    // what of the tools the model is not told, or the grammar does not keep
    std::vector<std::string> left_out() const {
        return inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_NONE ? std::vector<std::string>() :
            h2o_chat_left_out(templates.get(), inputs.tools);
    }

    // What begins thoughts, and what ends them; nothing if the model does not think. Then: what of them the prompt has.
    std::tuple<std::string, std::vector<std::string>, std::string> thoughts() const {
        auto start = params.thinking_start_tag;
        auto ends  = params.thinking_end_tags;
        if (ends.empty() && params.prompt.find("<|channel|>") != std::string::npos) { // upstream names none of Harmony's
            start = "<|channel|>analysis<|message|>";
            ends  = { "<|end|>" };
        }
        return { start, ends, params.generation_prompt };
    }

    const common_chat_params params;

    std::vector<llama_token> preserved_tokens; // special tokens that are part of an answer's text

private:
    // as common_sampler_init
    void add_trigger(const common_grammar_trigger & trigger, std::vector<std::string> & patterns,
        std::vector<llama_token> & tokens) const {
        switch (trigger.type) {
            case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:
                tokens.push_back(trigger.token);
                break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_WORD:
                patterns.push_back(regex_escape(trigger.value));
                break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:
                patterns.push_back(trigger.value);
                break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL:
                {
                    const std::string & pattern = trigger.value;
                    const bool has_begin = !pattern.empty() && pattern.front() == '^';
                    const bool has_end   = !pattern.empty() && pattern.back()  == '$';
                    patterns.push_back((has_begin ? "" : "^") + pattern + (has_end ? "" : "$"));
                } break;
        }
    }

    // The end of the prompt, which the grammar describes too. Some tokenizers put a space before the first token.
    std::vector<llama_token> prefill() const {
        const std::string & text = params.generation_prompt;
        auto tokens = common_tokenize(mdl->vocab, text, false, true);
        if (!tokens.empty()) {
            const std::string piece = common_token_to_piece(mdl->vocab, tokens[0], true);
            if (!piece.empty() && std::isspace((unsigned char) piece[0]) && !std::isspace((unsigned char) text[0])) {
                tokens.erase(tokens.begin());
            }
        }
        return tokens;
    }

    const std::shared_ptr<model>                       mdl;
    const std::shared_ptr<const common_chat_templates> templates;
    const common_chat_templates_inputs                 inputs;

    std::vector<common_grammar_trigger> triggers; // of the grammar; words that are tokens are found
};

class chat_template {
public:
    // source: a Jinja template, or "chatml"; empty for the model's own
    chat_template(std::shared_ptr<model> mdl, const std::string & source) : mdl(std::move(mdl)) {
        const llama_model * llama = this->mdl->ptr.get();
        if (source.empty() && !llama_model_chat_template(llama, nullptr) &&
            !llama_model_chat_template(llama, "tool_use")) {
            throw std::invalid_argument(
                "[chat] this model has no chat template: use one that was trained for chat, or pass chat_template= to "
                "Llama, a Jinja template or 'chatml'");
        }
        if (llama_vocab_type(this->mdl->vocab) == LLAMA_VOCAB_TYPE_NONE) {
            throw h2o_error("[chat] this model has no tokenizer");
        }
        const std::string what =
            source.empty() ? "the model's chat template cannot be used" : "chat_template cannot be used";
        const auto check = [&](const char * text) { // whether upstream's parser can, and should, read it
            if (text && text[0] != '\0' && std::string(text) != "chatml") {
                run(what, [&] { common_chat_template(text, "", ""); });
            }
        };
        check(source.empty() ? llama_model_chat_template(llama, nullptr) : source.c_str());
        check(source.empty() ? llama_model_chat_template(llama, "tool_use") : nullptr);
        run(what, [&] { templates = common_chat_templates_init(llama, source); });
    }

    chat_prompt apply(const std::string & messages, const std::string & tools, const std::string & tool_choice,
        std::optional<bool> parallel_tool_calls, const std::string & json_schema, bool add_generation_prompt,
        const std::map<std::string, std::string> & kwargs, int64_t now) const {
        common_chat_templates_inputs inputs;
        // their errors quote messages and tools
        common_json request;
        run("messages", [&] {
            request["messages"] = common_json::parse(messages);
            h2o_chat_remove_nulls(request);
            inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
        }, 300);
        run("tools", [&] {
            request["tools"] = common_json::parse(tools);
            h2o_chat_remove_nulls(request);
            inputs.tools = common_chat_tools_parse_oaicompat(request.value("tools", common_json()));
        }, 300);
        inputs.tool_choice           = common_chat_tool_choice_parse_oaicompat(tool_choice);
        inputs.parallel_tool_calls   = parallel_tool_calls.value_or(
            common_chat_templates_get_caps(templates.get()).at("supports_parallel_tool_calls")); // as upstream's server
        inputs.json_schema           = json_schema;
        inputs.add_generation_prompt = add_generation_prompt;
        if (add_generation_prompt && !inputs.messages.empty() && inputs.messages.back().role == "assistant" &&
            inputs.messages.back().tool_calls.empty()) {
            inputs.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
            inputs.add_generation_prompt  = false;
        }
        inputs.reasoning_format      = COMMON_REASONING_FORMAT_AUTO;
        inputs.chat_template_kwargs  = kwargs;
        inputs.chat_template_kwargs.emplace("preserve_reasoning", "true"); // as the server has it
        if (now > 0) { // seconds since 1970 that the template's date is of
            inputs.now = std::chrono::system_clock::from_time_t(now);
        }

        const auto thinking = kwargs.find("enable_thinking");
        inputs.enable_thinking = thinking == kwargs.end() || thinking->second != "false";

        return run(REFUSES, [&] { return chat_prompt(mdl, templates, std::move(inputs)); });
    }

    std::string source() const { return common_chat_templates_source(templates.get()); }

private:
    const std::shared_ptr<model> mdl;

    std::shared_ptr<const common_chat_templates> templates;
};

void init_chat(py::module_ & m) {
    common_log_set_verbosity_thold(-1); // errors are exceptions here, and upstream's log has a thread of its own

    py::class_<chat_parser>(m, "ChatParser")
        .def("update", &chat_parser::update, py::arg("piece"), py::arg("is_partial"))
        .def_property_readonly("message", &chat_parser::message);

    py::class_<chat_prompt>(m, "ChatPrompt")
        .def_property_readonly("text",  [](const chat_prompt & self) { return self.params.prompt; })
        .def_property_readonly("stops", [](const chat_prompt & self) { return self.params.additional_stops; })
        .def_readonly("preserved_tokens", &chat_prompt::preserved_tokens)
        .def_property_readonly("thoughts", &chat_prompt::thoughts)
        .def_property_readonly("left_out", &chat_prompt::left_out)
        .def("tokens", &chat_prompt::tokens, py::arg("marker"), py::arg("parse_names"))
        .def("grammar", &chat_prompt::make_grammar)
        .def("parser", &chat_prompt::make_parser, py::arg("id_prefix"));

    py::class_<chat_template, std::shared_ptr<chat_template>>(m, "ChatTemplate")
        .def(py::init<std::shared_ptr<model>, const std::string &>(), py::arg("model"), py::arg("source"))
        .def("apply", &chat_template::apply, py::kw_only(),
            py::arg("messages"), py::arg("tools"), py::arg("tool_choice"), py::arg("parallel_tool_calls"),
            py::arg("json_schema"), py::arg("add_generation_prompt"), py::arg("kwargs"), py::arg("now") = 0)
        .def_property_readonly("source", &chat_template::source);
}
