// Embeddings of texts: what the model's last layer says of every token, from a dense context of their own.

#include "bindings/context/context.h"
#include "bindings/context/rope.h"
#include "bindings/h2o-options.h"
#include "bindings/llama-call.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

using token_list   = std::vector<llama_token>;
using hidden_array = py::array_t<float>;
using context_ptr  = std::unique_ptr<llama_context, decltype(&llama_free)>;

static const std::string EMBED = "[Model.embed] ";

// Tokens that are computed at once, where each attends only to those before it.
static constexpr uint32_t N_STEP = 512;

static void compute(llama_context * ctx, token_list & text, uint32_t n_step, int64_t n_embd, float * rows) {
    llama_call call(/*verbose =*/ false);

    if (llama_memory_t memory = llama_get_memory(ctx)) {
        llama_memory_clear(memory, /*data =*/ false);
    }
    for (size_t i = 0; i < text.size(); i += n_step) {
        const size_t  n      = std::min<size_t>(n_step, text.size() - i);
        const int32_t status =
            llama_call::run(EMBED, [&] { return llama_decode(ctx, llama_batch_get_one(text.data() + i, n)); });
        const float * found  = status == 0 ? llama_get_embeddings(ctx) : nullptr;
        if (!found) {
            throw h2o_error(EMBED + "llama.cpp failed (status " + std::to_string(status) + "): " + call.reason());
        }
        memcpy(rows + i*n_embd, found, n*n_embd*sizeof(float));
    }
}

// whole: a token attends to those after it, too, so that a text must be computed at once
static std::vector<hidden_array> embed(model & mdl, std::vector<token_list> texts, bool whole, int32_t n_threads,
        const rope_options & rope, const option_values & options) {
    uint32_t n_ctx = 0;
    for (const auto & text : texts) {
        if (text.empty()) {
            throw std::invalid_argument(EMBED + "a text has no tokens");
        }
        n_ctx = std::max<uint32_t>(n_ctx, text.size());
    }
    const int64_t n_embd = llama_model_n_embd_out(mdl.ptr.get());

    std::vector<hidden_array> res;
    std::vector<float *>      rows;
    for (const auto & text : texts) {
        rows.push_back(res.emplace_back(std::vector<py::ssize_t>{ (py::ssize_t) text.size(), n_embd }).mutable_data());
    }

    const llama_h2o_params h2o = read_options(options);
    callbacks calls;

    llama_context_params params = llama_context_default_params();
    params.embeddings          = true;
    params.pooling_type        = LLAMA_POOLING_TYPE_NONE;
    params.n_ctx               = n_ctx;
    params.n_threads           = n_threads;
    params.n_threads_batch     = n_threads;
    params.h2o                 = &h2o;
    apply(rope, params);
    params.abort_callback      = callbacks::on_abort;
    params.abort_callback_data = &calls;
    {
        computing no_gil;
        uint32_t n_step = whole ? n_ctx : std::min(n_ctx, N_STEP);
        const auto open = [&] {
            params.n_batch = params.n_ubatch = n_step;
            return context_ptr(open_context(mdl, params, EMBED, /*verbose =*/ false), llama_free);
        };
        context_ptr ctx = open();
        if (!llama_get_memory(ctx.get()) && n_step < n_ctx) {
            n_step = n_ctx; // an encoder
            ctx.reset();
            ctx = open();
        }
        for (size_t i = 0; i < texts.size() && !calls.failed(); ++i) {
            try {
                compute(ctx.get(), texts[i], n_step, n_embd, rows[i]);
            } catch (const h2o_error &) {
                if (!calls.failed()) {
                    throw;
                }
            }
        }
    }
    if (calls.failed()) {
        calls.rethrow(); // Ctrl-C
    }
    return res;
}

void init_embed(py::module_ & m) {
    m.def("embed", &embed, py::arg("model"), py::arg("texts"), py::arg("whole"), py::arg("n_threads"), py::arg("rope"),
        py::arg("options"), "The hidden states of the last layer of each text, [n_tokens, n_embd].");
}
