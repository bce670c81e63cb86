// A sequence's cache without a context, which is filled by hand: nothing is computed with it.

#include "bindings/context/kv.h"

#include "bindings/h2o-options.h"
#include "bindings/llama-call.h"
#include "bindings/model/model.h"

#include "llama-cparams.h"
#include "llama-model.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

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

    // colsum [n_rows, n]: a row for each KV head, or for each query head
    void add_scores(int32_t il, const h2o_columns & columns, const f32_array & colsum) {
        const auto &   layer  = this->layer(il);
        const uint32_t n_rows = colsum.shape(0), n = colsum.shape(1);
        check(n_rows == layer.n_head_kv || n_rows == layer.n_head);

        std::vector<float> sums(layer.n_head_kv*n);
        for (uint32_t h = 0; h < n_rows; ++h) {
            for (uint32_t i = 0; i < n; ++i) {
                sums[h/(n_rows/layer.n_head_kv)*n + i] += colsum.at(h, i);
            }
        }
        ptr->sequence.add_scores(layer.index, columns, sums.data(), n);
    }

    void next_chunk(uint32_t n) {
        check(n <= kv_size() - ptr->state().n_tokens);
        ptr->sequence.add_tokens(n, /*generated =*/ true); // unscored
    }

    void init_chunk_scores(int32_t il, uint32_t start, const f32_array & colsum) {
        check(colsum.ndim() == 2 && colsum.shape(1) >= 1 && fits(start, colsum.shape(1)));
        add_scores(il, { 0, start, (uint32_t) colsum.shape(1) }, colsum);
    }

    void accumulate_memory_scores(int32_t il, const f32_array & colsum) {
        check(colsum.ndim() == 2 && colsum.shape(1) == (py::ssize_t) ptr->memory.config.memory_size());
        add_scores(il, { (uint32_t) layer(il).n_memory(), 0, 0 }, colsum);
    }

    // out of the memory set before it and the chunk, maybe partial, that ends at chunk_end
    void build_memory_set(int32_t il, uint32_t chunk_end) {
        check(chunk_end >= 1 && fits(0, chunk_end) && layer(il).can_build_memory_set(ptr->memory.config, chunk_end));
        ptr->sequence.build_memory_set(layer(il).index, chunk_end);
    }

    // k and v: [n_head_kv, n, head_size]
    void set_kv(int32_t il, uint32_t start, const f32_array & k, const f32_array & v) {
        for (const auto & [part, values] : { std::pair(H2O_K, k), std::pair(H2O_V, v) }) {
            const auto rows = this->rows(il, part);
            check(values.ndim() == 3 && values.shape(0) == rows.n_head && fits(start, values.shape(1)) &&
                values.shape(2) == rows.n_embd);
            rows.set(start, start + values.shape(1), values.data());
        }
    }

    // K or V of the memory set; padding is zero
    template <h2o_kv_part part> f32_array gather(int32_t il) {
        const auto   rows   = this->rows(il, part);
        const auto   memory = ptr->state().memory(layer(il));
        const size_t M      = ptr->memory.config.memory_size();

        f32_array all({ rows.n_head, kv_size(), rows.n_embd });
        ptr->memory.store.read(ptr->id, ptr->state(), kv_layer(il), part, 0, kv_size(), all.mutable_data());

        f32_array res({ (size_t) rows.n_head, M, (size_t) rows.n_embd });
        std::fill_n(res.mutable_data(), res.size(), 0.0f);
        for (size_t i = 0; i < memory.size(); ++i) {
            if (memory[i] >= 0) {
                std::copy_n(all.data(i/M, memory[i]), rows.n_embd, res.mutable_data(i/M, i%M));
            }
        }
        return res;
    }

private:
    uint32_t kv_size() const { return ptr->memory.store.layout.n_rows(); }

    bool fits(uint32_t start, size_t n) const { return start <= kv_size() && n <= kv_size() - start; }
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
        .def("set_kv", &kv_cache::set_kv, layer, start, py::arg("k").noconvert(), py::arg("v").noconvert())
        .def("gather_k_memory", &kv_cache::gather<H2O_K>, layer)
        .def("gather_v_memory", &kv_cache::gather<H2O_V>, layer);
}
