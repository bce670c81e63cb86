#include "bindings/context/kv.h"

#include "bindings/context/context.h"
#include "bindings/llama-call.h"
#include "h2o/store/cold/store.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using named_values = std::map<std::string, py::object>;

using i32_array = py::array_t<int32_t, py::array::c_style>;

// values [n_head_kv, n]
template <typename T>
static py::array_t<T> by_head(const h2o_layer & layer, const std::vector<T> & values) {
    const py::ssize_t n_head = layer.n_head_kv;
    return py::array_t<T>({ n_head, (py::ssize_t) values.size()/n_head }, values.data());
}

static i32_array memory_indices(const h2o_kv & self, int32_t il) {
    return by_head(self.layer(il), self->state().memory(self.layer(il)));
}

// indices: [n_head_kv, M]; the first n_memory() positions of a row count
static void set_memory_indices(h2o_kv & self, int32_t il, const i32_array & indices) {
    const auto &   layer    = self.layer(il);
    const uint32_t n_tokens = self->state().n_tokens;
    const uint32_t n        = self->memory.config.n_memory(n_tokens);

    std::vector<int32_t> memory;
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        memory.insert(memory.end(), indices.data(h), indices.data(h) + n);
    }
    const auto before = self->state().record(n_tokens, self->state().open_start());
    auto & side = self->memory.caches.side;
    try {
        if (self->sequence.set_memory(layer.index, std::move(memory)) && !side.empty()) {
            self->sequence.set_side(side.save(self->id), n_tokens);
        }
    } catch (...) { // no memory, or a device that cannot be read
        self->sequence.restore(before);
        throw;
    }
}

static i32_array history(const h2o_kv & self, uint32_t chunk, int32_t il) {
    const auto memory = self->state().past_memory(self.layer(il), chunk);
    h2o_kv::check(!memory.empty());
    return by_head(self.layer(il), memory);
}

static std::optional<i32_array> extra_keys(const h2o_kv & self, int32_t il, uint32_t head, uint32_t tile) {
    const auto keys = self->state().extra_keys(self.layer(il), head, tile);
    return keys ? std::make_optional(i32_array(keys->size(), keys->data())) : std::nullopt;
}

static f32_array scores(const h2o_kv & self, int32_t il) {
    return by_head(self.layer(il), self->state().scores(self.layer(il)));
}

static std::optional<f32_array> attention(const h2o_kv & self, int32_t il) {
    f32_array dst({ self.layer(il).n_head_kv, self->state().n_tokens });
    return llama_h2o_kv_attention(self.ptr.get(), il, dst.mutable_data()) ? std::make_optional(dst) : std::nullopt;
}

// K or V of the first n positions
template <h2o_kv_part part>
static f32_array get_rows(const h2o_kv & self, int32_t il, uint32_t n) {
    f32_array dst({ self.layer(il).n_head_kv, n, self.rows(il, part).n_embd });
    llama_call::run("[KVCache] K and V cannot be read: ", [&] { // a cold store may fail
        self->memory.store.read(self->id, self->state(), self.kv_layer(il), part, n, dst.mutable_data());
    });
    return dst;
}

template <typename T>
static uint64_t sum_of_sizes(const T & buffers) {
    uint64_t res = 0;
    for (const auto & [buft, size] : buffers) {
        res += size;
    }
    return res;
}

// fields of Python's KVStats
static named_values stats(const h2o_kv & self) {
    const auto &   memory = self->memory;
    const auto &   store  = memory.store;
    const auto &   counts = self->counts;
    const uint64_t n_seq  = memory.sequences().size();

    named_values res;
    const auto set = [&](const std::string & name, uint64_t n) { res[name] = py::int_(n); };
    const auto set_ms = [&](const std::string & name, int64_t us) { res[name] = py::float_(us/1000.0); };

    const auto add_passes = [&](const char * name, const char * unit, h2o_step::phase_t phase) {
        set(std::string(name) + unit, counts.passes[phase].n);
        set_ms(std::string(name) + "_ms", counts.passes[phase].t_us);
    };
    add_passes("single_pass", "_runs",  h2o_step::SINGLE_PASS);
    add_passes("phase1",      "_runs",  h2o_step::INTRA);
    add_passes("phase2",      "_runs",  h2o_step::INTER);
    add_passes("decode",      "_steps", h2o_step::DECODE);
    add_passes("tail",        "_runs",  h2o_step::TAIL);
    set("graphs_reused",  counts.n_reused);
    set("prefill_tokens", counts.n_tokens_prefill);
    set("selections",     counts.selections.n);
    set_ms("select_ms",    counts.selections.t_us);
    set_ms("gather_ms",    self->profile.t_part_us[H2O_PART_GATHER]);
    set_ms("attention_ms", self->profile.t_part_us[H2O_PART_ATTENTION]);
    set_ms("score_ms",     self->profile.t_part_us[H2O_PART_SCORES]);

    uint64_t n_side = 0, n_scores = 0, n_memory = 0;
    for (const auto * cache : memory.caches.side.all()) {
        n_side += sum_of_sizes(cache->memory_breakdown())/n_seq;
    }
    for (const auto & [pos, checkpoint] : self->state().checkpoints) {
        n_side += checkpoint.side ? checkpoint.side->size() : 0;
    }
    for (const auto & layer : self->state().layers) {
        n_scores += (layer.scores.size() + layer.memory_scores.size())*sizeof(float);
        n_memory += layer.memory.size()*sizeof(int32_t);
    }
    const auto * cold = store.cold(self->id);
    set("kv_bytes",     store.n_bytes());
    set("token_bytes",  store.row_bytes(false) + store.row_bytes(true));
    set("index_bytes",  memory.index ? sum_of_sizes(memory.index->sizes())/n_seq : 0);
    set("intra_bytes",  memory.intra ? memory.intra->n_bytes() : 0);
    set("side_bytes",   n_side);
    set("cold_bytes",   cold ? cold->n_bytes() : 0);
    set("score_bytes",  n_scores);
    set("memory_bytes", n_memory);
    return res;
}

// fields of Python's LosslessStats; none without a codec
static std::optional<named_values> lossless_stats(const h2o_kv & self) {
    const auto * cold = self->memory.store.cold(self->id);
    if (!cold || !cold->codec) {
        return std::nullopt;
    }
    const auto s = cold->codec->stats();
    const auto n = [](uint64_t n) { return py::int_(n); };
    return named_values {
        { "encoded_blocks", n(s.n_encoded) },
        { "raw_blocks",     n(s.n_raw) },
        { "failed_blocks",  n(s.n_failed) },
        { "k_bytes",        n(s.bytes_raw[0]) },
        { "v_bytes",        n(s.bytes_raw[1]) },
        { "stored_k_bytes", n(s.bytes_stored[0]) },
        { "stored_v_bytes", n(s.bytes_stored[1]) },
        { "waiting_chunks", n(s.n_waiting) },
    };
}

void init_kv(py::module_ & m) {
    py::class_<llama_h2o_info>(m, "KVInfo")
        .def_readonly("chunk_size",    &llama_h2o_info::chunk_size)
        .def_readonly("local_window",  &llama_h2o_info::local_window)
        .def_readonly("heavy_budget",  &llama_h2o_info::heavy_budget)
        .def_readonly("sink_tokens",   &llama_h2o_info::sink_tokens)
        .def_readonly("memory_size",   &llama_h2o_info::memory_size)
        .def_readonly("lookup_budget", &llama_h2o_info::lookup_budget)
        .def_readonly("tile",          &llama_h2o_info::tile)
        .def_readonly("kv_size",       &llama_h2o_info::kv_size)
        .def_readonly("n_tokens",      &llama_h2o_info::n_tokens)
        .def_readonly("chunk_index",   &llama_h2o_info::chunk_index)
        .def_readonly("n_memory_sets", &llama_h2o_info::n_memory_sets)
        .def_readonly("rewind_step",   &llama_h2o_info::rewind_step)
        .def_readonly("has_scores",    &llama_h2o_info::has_scores);

    const auto layer = py::arg("layer");
    py::class_<h2o_kv>(m, "KV")
        .def_static("of_context", [](context & ctx) -> std::optional<h2o_kv> {
            ctx.drop_draft();

            llama_h2o_kv * kv = ctx.h2o();
            if (!kv) {
                return std::nullopt;
            }
            return h2o_kv { std::shared_ptr<llama_h2o_kv>(ctx.ptr, kv) };
        }, py::arg("context"))
        .def_property_readonly("info", [](const h2o_kv & self) { return llama_h2o_kv_info(self.ptr.get()); })
        .def_property_readonly("stats",          &stats)
        .def_property_readonly("lossless_stats", &lossless_stats)
        .def_property_readonly("layers", [](const h2o_kv & self) {
            std::vector<int32_t> layers;
            for (const auto & layer : self->state().layers) {
                layers.push_back(layer.il);
            }
            return layers;
        })
        .def("n_memory", [](const h2o_kv & self, uint32_t end) { return self->memory.config.n_memory(end); },
            py::arg("chunk_end"))
        .def("n_head_kv",      [](const h2o_kv & self, int32_t il) { return self.layer(il).n_head_kv; }, layer)
        .def("memory_end",     [](const h2o_kv & self, int32_t il) { return self.layer(il).memory_end; }, layer)
        .def("memory_indices", &memory_indices, layer)
        .def("set_memory_indices", &set_memory_indices, layer, py::arg("indices").noconvert())
        .def("history",        &history,        py::arg("chunk"), layer)
        .def("extra_keys",     &extra_keys,     layer, py::arg("head"), py::arg("tile"))
        .def("scores",         &scores,         layer)
        .def("keep_attention", [](h2o_kv & self, bool keep) { llama_h2o_kv_keep_attention(self.ptr.get(), keep); },
            py::arg("keep"))
        .def("attention",      &attention,      layer)
        .def("get_k", &get_rows<H2O_K>, layer, py::arg("n"))
        .def("get_v", &get_rows<H2O_V>, layer, py::arg("n"));
}
