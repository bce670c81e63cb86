#include "bindings/chat/grammar.h"
#include "bindings/context/context.h"
#include "bindings/llama-call.h"

#include <pybind11/stl.h>

#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

static constexpr int32_t PENALTY_LAST_N = 64; // llama.cpp's default

static constexpr int32_t MIROSTAT_M = 100; // llama.cpp's, and the paper's

// llama.cpp's sampler chain: biases, penalties, DRY, then greedy, or top-k, typical, top-p, min-p, XTC, temperature and
// a draw, or temperature and Mirostat. With a grammar, a token that does not fit is drawn again, from tokens that do.
class sampler {
public:
    // numbers: by the names of Python's Sampling, all of them. breakers: no repetition goes beyond them
    sampler(const model & mdl, const std::map<std::string, double> & numbers, uint32_t seed,
            const std::vector<std::string> & breakers, const std::vector<std::pair<llama_token, float>> & logit_bias,
            const std::optional<std::shared_ptr<grammar>> & rules)
        : chain(llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free) {
        const auto real    = [&](const char * name) { return (float)   numbers.at(name); };
        const auto integer = [&](const char * name) { return (int32_t) numbers.at(name); };
        if (rules) {
            constraint = (*rules)->make_sampler();
        }
        if (!logit_bias.empty()) {
            std::vector<llama_logit_bias> biases;
            for (const auto & [token, bias] : logit_bias) {
                biases.push_back({ token, bias });
            }
            add(llama_sampler_init_logit_bias(mdl.n_vocab(), biases.size(), biases.data()));
        }
        add(llama_sampler_init_penalties(mdl.n_vocab(), PENALTY_LAST_N, real("repeat_penalty"),
            real("frequency_penalty"), real("presence_penalty")));
        if (real("dry_multiplier") > 0.0f) {
            if (llama_vocab_type(mdl.vocab) == LLAMA_VOCAB_TYPE_NONE) {
                throw h2o_error(
                    "[Llama.generate] dry_multiplier: this model has no tokenizer to find dry_sequence_breakers with");
            }
            std::vector<const char *> texts;
            for (const auto & text : breakers) {
                texts.push_back(text.c_str());
            }
            llama_call::run("[Llama.generate] ", [&] {
                add(llama_sampler_init_dry(mdl.vocab, real("dry_multiplier"), real("dry_base"),
                    integer("dry_allowed_length"), integer("dry_penalty_last_n"), texts.data(), texts.size()));
            });
        }
        if (real("temperature") == 0.0f) {
            add(llama_sampler_init_greedy());
            return;
        }
        if (const int32_t version = integer("mirostat_mode"); version > 0) {
            const float tau = real("mirostat_tau"), eta = real("mirostat_eta");
            add(llama_sampler_init_temp(real("temperature")));
            add(version == 1 ? llama_sampler_init_mirostat(mdl.n_vocab(), seed, tau, eta, MIROSTAT_M) :
                llama_sampler_init_mirostat_v2(seed, tau, eta));
            return;
        }
        add(llama_sampler_init_top_k(integer("top_k")));
        add(llama_sampler_init_typical(real("typical_p"), /*min_keep =*/ 1));
        add(llama_sampler_init_top_p(real("top_p"), /*min_keep =*/ 1));
        add(llama_sampler_init_min_p(real("min_p"), /*min_keep =*/ 1));
        add(llama_sampler_init_xtc(real("xtc_probability"), real("xtc_threshold"), /*min_keep =*/ 1, seed));
        add(llama_sampler_init_temp(real("temperature")));
        add(llama_sampler_init_dist(seed));
    }

    // A token of the prompt, or, constrained, of the text that the grammar describes.
    void accept(llama_token token, bool constrained) {
        llama_call::run("[Llama.generate] ", [&] {
            llama_sampler_accept(chain.get(), token);
            if (constraint && constrained) {
                llama_sampler_accept(constraint.get(), token);
            }
        });
    }

    // The next token, which is not accepted yet. logits: [n_vocab]
    llama_token sample(const context::rows_array & logits, bool constrained) {
        return llama_call::run("[Llama.generate] ", [&] {
            const llama_token token = draw(logits.data(), logits.size(), /*constrained =*/ false);
            return constraint && constrained && !fits(token) ?
                draw(logits.data(), logits.size(), /*constrained =*/ true) : token;
        });
    }

private:
    bool fits(llama_token token) {
        llama_token_data       single = { token, 1.0f, 0.0f };
        llama_token_data_array array  = { &single, 1, /*.selected =*/ -1, /*.sorted =*/ false };
        llama_sampler_apply(constraint.get(), &array);
        return single.logit > -INFINITY;
    }

    // as llama_sampler_sample, of logits that need not be a context's
    llama_token draw(const float * logits, int32_t n_vocab, bool constrained) {
        candidates.resize(n_vocab);
        for (llama_token id = 0; id < n_vocab; ++id) {
            if (!(logits[id] < INFINITY)) { // sorting needs an order
                throw std::runtime_error(
                    "the logits of the last token are not finite: weights, or a restored state, are damaged");
            }
            candidates[id] = { id, logits[id], 0.0f };
        }

        llama_token_data_array array = {
            candidates.data(), candidates.size(), /*.selected =*/ -1, /*.sorted =*/ false };
        if (constrained) {
            llama_sampler_apply(constraint.get(), &array);
        }
        llama_sampler_apply(chain.get(), &array);
        if (array.selected < 0 || array.data[array.selected].logit == -INFINITY) {
            throw std::runtime_error(constrained
                ? "no token fits the grammar here: the vocabulary cannot write it, or logit_bias or logits_processor "
                    "forbid it"
                : "no token can be drawn: logit_bias or logits_processor forbid all");
        }
        return array.data[array.selected].id;
    }

    void add(llama_sampler * smpl) {
        llama_sampler_chain_add(chain.get(), smpl);
    }

    std::unique_ptr<llama_sampler, void (*)(llama_sampler *)> chain;

    std::shared_ptr<llama_sampler> constraint; // of the grammar; none without

    std::vector<llama_token_data> candidates; // kept, as new memory is slow at first
};

void init_sampler(py::module_ & m) {
    py::class_<sampler>(m, "Sampler")
        .def(py::init<const model &, const std::map<std::string, double> &, uint32_t, const std::vector<std::string> &,
                const std::vector<std::pair<llama_token, float>> &, const std::optional<std::shared_ptr<grammar>> &>(),
            py::arg("model"), py::arg("numbers"), py::arg("seed"), py::arg("breakers"), py::arg("logit_bias"),
            py::arg("grammar"))
        .def("accept", &sampler::accept, py::arg("token"), py::arg("constrained"))
        .def("sample", &sampler::sample, py::arg("logits"), py::arg("constrained"));
    m.attr("RANDOM_SEED") = LLAMA_DEFAULT_SEED;
}
