// A sequence's cache without a context, which is filled by hand: nothing is computed with it. Python has checked all arguments.

#include "bindings/context/kv.h"

#include "bindings/h2o-options.h"
#include "bindings/llama-call.h"
#include "bindings/model/model.h"

#include "llama-cparams.h"
#include "llama-model.h"

#include <pybind11/stl.h>

#include <string>

struct kv_cache : h2o_kv {
    kv_cache(const model & mdl, uint32_t kv_size, const option_values & h2o, const std::string & type_k,
            const std::string & type_v) {
        computing::check();

        llama_memory_params memory = {};
        memory.type_k = find_type(type_k);
        memory.type_v = find_type(type_v);

        llama_cparams cparams = {};
        cparams.h2o        = h2o_config(read_options(h2o));
        cparams.n_ctx_seq  = kv_size;
        cparams.n_seq_max  = 1;
        cparams.flash_attn = true;

        const auto & hparams = mdl.ptr->hparams;
        for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
            if (hparams.n_embd_head_k(il)%ggml_blck_size(memory.type_k) != 0 ||
                    hparams.n_embd_head_v(il)%ggml_blck_size(memory.type_v) != 0) {
                throw h2o_error("[KVCache] the cache cannot be made: the block size of the K or V type does not divide "
                    "the head size of layer " + std::to_string(il));
            }
        }
        const h2o_model_layers layers = { [&](int32_t il) { return !hparams.is_recr(il); }, nullptr, nullptr };

        llama_call call(/*verbose =*/ false);
        const auto owner = llama_call::run("[KVCache] the cache cannot be made: ", [&] {
            return std::make_shared<h2o_memory>(*mdl.ptr, memory, cparams, layers);
        });
        ptr.reset(owner->sequence(0), [model = mdl.ptr, owner](llama_h2o_kv *) {}); // which keeps both
        ptr->sequence.keep_scores(true); // they are given by hand
    }

    void next_chunk(uint32_t n) { ptr->sequence.add_tokens(n, /*generated =*/ true); } // unscored

    // colsum [n_head_kv, n]
    void add_scores(int32_t il, const h2o_columns & columns, const f32_array & colsum) {
        ptr->sequence.add_scores(layer(il).index, columns, colsum.data(), colsum.shape(1));
    }

    void init_chunk_scores(int32_t il, uint32_t start, const f32_array & colsum) {
        add_scores(il, { 0, start, (uint32_t) colsum.shape(1) }, colsum);
    }

    void accumulate_memory_scores(int32_t il, const f32_array & colsum) {
        add_scores(il, { (uint32_t) layer(il).n_memory(), 0, 0 }, colsum);
    }

    // out of the memory set before it and the chunk, maybe partial, that ends at chunk_end
    void build_memory_set(int32_t il, uint32_t chunk_end) {
        ptr->sequence.build_memory_set(layer(il).index, chunk_end);
    }

    // k and v: [n_head_kv, n, head_size]
    void set_kv(int32_t il, uint32_t start, const f32_array & k, const f32_array & v) {
        for (const auto & [part, values] : { std::pair(H2O_K, k), std::pair(H2O_V, v) }) {
            rows(il, part).set(start, start + values.shape(1), values.data());
        }
    }
};

void init_kv_cache(py::module_ & m) {
    const auto layer = py::arg("layer"), start = py::arg("start");
    py::class_<kv_cache, h2o_kv>(m, "KVCache")
        .def(py::init<const model &, uint32_t, const option_values &, const std::string &, const std::string &>(),
            py::arg("model"), py::arg("kv_size"), py::arg("h2o"), py::arg("type_k"), py::arg("type_v"))
        .def("n_head",      [](const kv_cache & self, int32_t il) { return self.layer(il).n_head; }, layer)
        .def("head_size_k", [](const kv_cache & self, int32_t il) { return self.rows(il, H2O_K).n_embd; }, layer)
        .def("head_size_v", [](const kv_cache & self, int32_t il) { return self.rows(il, H2O_V).n_embd; }, layer)
        .def("clear", [](kv_cache & self) { self->memory.clear(*self.ptr); })
        .def("next_chunk", &kv_cache::next_chunk, py::arg("n"))
        .def("build_memory_set", &kv_cache::build_memory_set, layer, py::arg("chunk_end"))
        .def("init_chunk_scores", &kv_cache::init_chunk_scores, layer, start, py::arg("colsum").noconvert())
        .def("accumulate_memory_scores", &kv_cache::accumulate_memory_scores, layer, py::arg("colsum").noconvert())
        .def("set_kv", &kv_cache::set_kv, layer, start, py::arg("k").noconvert(), py::arg("v").noconvert());
}
