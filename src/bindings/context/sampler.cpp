#include "bindings/chat/grammar.h"
#include "bindings/context/context.h"
#include "bindings/llama-call.h"

#include <pybind11/stl.h>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

static constexpr int32_t PENALTY_LAST_N = 64; // llama.cpp's default

// Don't repeat yourself: a token that continues a repetition of more than allowed_length tokens loses
// multiplier*base^(length - allowed_length). Multiplier (0 is off), base, allowed_length, of how many last tokens, and
// the breakers, beyond which no repetition goes.
using dry_options = std::tuple<float, float, int32_t, int32_t, std::vector<std::string>>;

using mirostat_options = std::tuple<int32_t, float, float>; // version (0 is off), tau, eta

static constexpr int32_t MIROSTAT_M = 100; // llama.cpp's, and the paper's

// llama.cpp's sampler chain: biases, penalties, DRY, then greedy, or top-k, typical, top-p, min-p, XTC, temperature and
// a draw, or temperature and Mirostat. With a grammar, a token that does not fit is drawn again, from tokens that do.
class sampler {
public:
    sampler(
            const model & mdl, float temperature, int32_t top_k, float typical_p, float top_p, float min_p,
            std::pair<float, float> xtc, float repeat_penalty, float frequency_penalty, float presence_penalty,
            const dry_options & dry, const mirostat_options & mirostat, uint32_t seed,
            const std::vector<std::pair<llama_token, float>> & logit_bias,
            const std::optional<std::shared_ptr<grammar>> & rules)
        : chain(llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free) {
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
        add(llama_sampler_init_penalties(
            mdl.n_vocab(), PENALTY_LAST_N, repeat_penalty, frequency_penalty, presence_penalty));
        if (std::get<0>(dry) > 0.0f) {
            add_dry(mdl, dry);
        }
        if (temperature == 0.0f) {
            add(llama_sampler_init_greedy());
            return;
        }
        if (const auto [version, tau, eta] = mirostat; version > 0) {
            add(llama_sampler_init_temp(temperature));
            add(version == 1 ? llama_sampler_init_mirostat(mdl.n_vocab(), seed, tau, eta, MIROSTAT_M) :
                llama_sampler_init_mirostat_v2(seed, tau, eta));
            return;
        }
        add(llama_sampler_init_top_k(top_k));
        add(llama_sampler_init_typical(typical_p, /*min_keep =*/ 1));
        add(llama_sampler_init_top_p(top_p, /*min_keep =*/ 1));
        add(llama_sampler_init_min_p(min_p, /*min_keep =*/ 1));
        add(llama_sampler_init_xtc(xtc.first, xtc.second, /*min_keep =*/ 1, seed));
        add(llama_sampler_init_temp (temperature));
        add(llama_sampler_init_dist (seed));
    }

    void accept(llama_token token) {
        llama_sampler_accept(chain.get(), token);
    }

    llama_token sample(const context & ctx) {
        const float * logits = ctx.last_logits();
        if (!logits) {
            throw h2o_error("[Llama.generate] there are no logits to sample from: pass at least one token");
        }
        return sample_from(logits, ctx.mdl->n_vocab());
    }

    llama_token sample_from(const float * logits, int32_t n_vocab) {
        return llama_call::run("[Llama.generate] ", [&] {
            llama_token token = draw(logits, n_vocab, /*constrained =*/ false);
            if (constraint && !fits(token)) {
                token = draw(logits, n_vocab, /*constrained =*/ true);
            }
            llama_sampler_accept(chain.get(), token);
            if (constraint) {
                llama_sampler_accept(constraint.get(), token);
            }
            return token;
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

    void add_dry(const model & mdl, const dry_options & dry) {
        if (llama_vocab_type(mdl.vocab) == LLAMA_VOCAB_TYPE_NONE) {
            throw h2o_error(
                "[Llama.generate] dry_multiplier: this model has no tokenizer to find dry_sequence_breakers with");
        }
        const auto [multiplier, base, allowed_length, last_n, texts] = dry;

        std::vector<const char *> breakers;
        for (const auto & text : texts) {
            breakers.push_back(text.c_str());
        }
        llama_call::run("[Llama.generate] ", [&, m = multiplier, b = base, allowed = allowed_length, n = last_n] {
            add(llama_sampler_init_dry(mdl.vocab, m, b, allowed, n, breakers.data(), breakers.size()));
        });
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
        .def(py::init<const model &, float, int32_t, float, float, float, std::pair<float, float>, float, float, float,
                const dry_options &, const mirostat_options &, uint32_t,
                const std::vector<std::pair<llama_token, float>> &, const std::optional<std::shared_ptr<grammar>> &>(),
            py::kw_only(), py::arg("model"), py::arg("temperature"), py::arg("top_k"), py::arg("typical_p"),
            py::arg("top_p"), py::arg("min_p"), py::arg("xtc"), py::arg("repeat_penalty"), py::arg("frequency_penalty"),
            py::arg("presence_penalty"), py::arg("dry"), py::arg("mirostat"), py::arg("seed"), py::arg("logit_bias"),
            py::arg("grammar"))
        .def("accept", &sampler::accept, py::arg("token"))
        .def("sample", &sampler::sample, py::arg("context"))
        .def("sample_from", [](sampler & self, const context::logits_array & logits) {
            return self.sample_from(logits.data(), (int32_t) logits.size());
        }, py::arg("logits"));
    m.attr("RANDOM_SEED") = LLAMA_DEFAULT_SEED;
}
