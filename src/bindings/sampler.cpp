#include "context.h"
#include "llama-call.h"

#include <cmath>
#include <stdexcept>
#include <vector>

static constexpr int32_t PENALTY_LAST_N = 64; // llama.cpp's default

// llama.cpp's sampler chain: penalties, then greedy, or top-k, top-p, min-p, temperature and a draw.
class sampler {
public:
    sampler(
            int32_t n_vocab, float temperature, int32_t top_k, float top_p, float min_p,
            float repeat_penalty, float frequency_penalty, float presence_penalty, uint32_t seed)
        : chain(llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free) {
        add(llama_sampler_init_penalties(n_vocab, PENALTY_LAST_N, repeat_penalty, frequency_penalty, presence_penalty));
        if (temperature == 0.0f) {
            add(llama_sampler_init_greedy());
            return;
        }
        add(llama_sampler_init_top_k(top_k));
        add(llama_sampler_init_top_p(top_p, /*min_keep =*/ 1));
        add(llama_sampler_init_min_p(min_p, /*min_keep =*/ 1));
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

        llama_call call(/*verbose =*/ false, llama_call::THROW);
        return llama_call::run("[Llama.generate] ", [&] { return draw(logits, ctx.mdl->n_vocab()); });
    }

private:
    // as llama_sampler_sample, of logits that need not be a context's
    llama_token draw(const float * logits, int32_t n_vocab) {
        candidates.resize(n_vocab);
        for (llama_token id = 0; id < n_vocab; ++id) {
            if (!(logits[id] < INFINITY)) { // what is sorted must have an order
                throw std::runtime_error("the logits of the last token are not finite: weights, or a restored state, are damaged");
            }
            candidates[id] = { id, logits[id], 0.0f };
        }

        llama_token_data_array array = { candidates.data(), candidates.size(), /*.selected =*/ -1, /*.sorted =*/ false };
        llama_sampler_apply(chain.get(), &array);
        if (array.selected < 0) {
            throw std::runtime_error("no token can be drawn from these logits");
        }

        const llama_token token = array.data[array.selected].id;
        llama_sampler_accept(chain.get(), token);
        return token;
    }

    void add(llama_sampler * smpl) {
        llama_sampler_chain_add(chain.get(), smpl);
    }

    std::unique_ptr<llama_sampler, void (*)(llama_sampler *)> chain;

    std::vector<llama_token_data> candidates; // kept, as new memory is slow at first
};

void init_sampler(py::module_ & m) {
    py::class_<sampler>(m, "Sampler")
        .def(py::init<int32_t, float, int32_t, float, float, float, float, float, uint32_t>(), py::kw_only(),
            py::arg("n_vocab"), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"), py::arg("min_p"),
            py::arg("repeat_penalty"), py::arg("frequency_penalty"), py::arg("presence_penalty"), py::arg("seed"))
        .def("accept", &sampler::accept, py::arg("token"))
        .def("sample", &sampler::sample, py::arg("context"));
    m.attr("RANDOM_SEED") = LLAMA_DEFAULT_SEED;
}
