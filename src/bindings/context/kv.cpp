#include "bindings/context/context.h"
#include "bindings/h2o-options.h"
#include "bindings/llama-call.h"
#include "bindings/types.h"

#include "llama-h2o-cache.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

using named_values = std::map<std::string, py::object>;

using f32_array = py::array_t<float, py::array::c_style>;
using i32_array = py::array_t<int32_t>;

// A KV cache with scores and memory sets: of a context, or stand-alone. Keeps its context or model alive.
struct h2o_kv {
    std::shared_ptr<llama_h2o_kv> ptr;

    operator llama_h2o_kv *() const { return ptr.get(); }
};

// Python has checked the arguments; what the core still refuses must not pass for a result.
static void check(bool ok, const char * function) {
    if (!ok) {
        throw std::invalid_argument(std::string("[KV.") + function + "] the cache has no place for these arguments");
    }
}

static py::ssize_t n_head_kv(const h2o_kv & self, int32_t il, const char * function) {
    const uint32_t n = llama_h2o_kv_n_head_kv(self, il);
    check(n > 0, function);
    return n;
}

template <auto get>
static uint32_t of_layer(const h2o_kv & self, int32_t il) {
    return get(self, il);
}

static py::ssize_t memory_size(const h2o_kv & self) {
    return llama_h2o_kv_info(self).memory_size;
}

static i32_array memory_indices(const h2o_kv & self, int32_t il) {
    i32_array dst({ n_head_kv(self, il, "memory_indices"), memory_size(self) });
    llama_h2o_kv_memory_indices(self, il, dst.mutable_data());
    return dst;
}

static void set_memory_indices(h2o_kv & self, int32_t il, const py::array_t<int32_t, py::array::c_style> & indices) {
    const py::ssize_t n_head = n_head_kv(self, il, "set_memory_indices");
    check(indices.ndim() == 2 && indices.shape(0) == n_head && indices.shape(1) == memory_size(self) &&
        llama_h2o_kv_set_memory_indices(self, il, indices.data()), "set_memory_indices");
}

static i32_array history(const h2o_kv & self, uint32_t chunk, int32_t il) {
    i32_array dst({ n_head_kv(self, il, "history"), memory_size(self) });
    check(llama_h2o_kv_history(self, chunk, il, dst.mutable_data()), "history");
    return dst;
}

static std::optional<i32_array> extra_keys(const h2o_kv & self, int32_t il, uint32_t head, uint32_t tile) {
    const int32_t n = llama_h2o_kv_extra_keys(self, il, head, tile, nullptr);
    if (n < 0) {
        return std::nullopt;
    }
    i32_array dst(n);
    llama_h2o_kv_extra_keys(self, il, head, tile, dst.mutable_data());
    return dst;
}

static f32_array scores(const h2o_kv & self, int32_t il) {
    f32_array dst({ n_head_kv(self, il, "scores"), (py::ssize_t) llama_h2o_kv_info(self).n_tokens });
    check(llama_h2o_kv_scores(self, il, dst.mutable_data()), "scores");
    return dst;
}

static std::optional<f32_array> attention(const h2o_kv & self, int32_t il) {
    f32_array dst({ n_head_kv(self, il, "attention"), (py::ssize_t) llama_h2o_kv_info(self).n_tokens });
    if (!llama_h2o_kv_attention(self, il, dst.mutable_data())) {
        return std::nullopt;
    }
    return dst;
}

// K or V of positions [p0, p1)
template <auto get, auto head_size>
static f32_array get_rows(const h2o_kv & self, int32_t il, uint32_t p0, uint32_t p1) {
    const py::ssize_t n_head   = n_head_kv(self, il, "get_k or get_v");
    const uint32_t    n_tokens = llama_h2o_kv_info(self).n_tokens;
    check(p0 <= p1 && p1 <= n_tokens, "get_k or get_v");

    llama_call call(/*verbose =*/ false);
    f32_array dst({ n_head, (py::ssize_t) (p1 - p0), (py::ssize_t) head_size(self, il) });
    if (!get(self, il, p0, p1, dst.mutable_data())) { // a cold store may fail
        throw h2o_error("[KVCache] K and V cannot be read: " + call.reason());
    }
    return dst;
}

// K or V of the memory set
template <auto get, auto head_size>
static f32_array gather(h2o_kv & self, int32_t il) {
    f32_array dst({ n_head_kv(self, il, "gather"), memory_size(self), (py::ssize_t) head_size(self, il) });
    check(get(self, il, dst.mutable_data()), "gather");
    return dst;
}

static void set_kv(h2o_kv & self, int32_t il, uint32_t p0, const f32_array & k, const f32_array & v) {
    const py::ssize_t n_head = n_head_kv(self, il, "set_kv");

    const auto fits = [&](const f32_array & a, uint32_t head_size) {
        return a.ndim() == 3 && a.shape(0) == n_head && a.shape(1) == k.shape(1) && a.shape(2) == head_size;
    };
    check(fits(k, llama_h2o_kv_head_size_k(self, il)) && fits(v, llama_h2o_kv_head_size_v(self, il)) &&
        llama_h2o_kv_set_kv(self, il, p0, p0 + k.shape(1), k.data(), v.data()), "set_kv");
}

static void init_chunk_scores(h2o_kv & self, int32_t il, uint32_t start, const f32_array & colsum) {
    check(colsum.ndim() == 2 &&
        llama_h2o_kv_init_chunk_scores(self, il, start, colsum.shape(1), colsum.data(), colsum.shape(0)),
        "init_chunk_scores");
}

static void accumulate_memory_scores(h2o_kv & self, int32_t il, const f32_array & colsum) {
    check(colsum.ndim() == 2 && colsum.shape(1) == memory_size(self) &&
        llama_h2o_kv_accumulate_memory_scores(self, il, colsum.data(), colsum.shape(0)),
        "accumulate_memory_scores");
}

// fields of Python's KVStats
static named_values stats(const h2o_kv & self) {
    const llama_h2o_stats s = llama_h2o_kv_stats(self);

    const auto ms = [](int64_t us) { return py::float_(us/1000.0); };
    const auto n  = [](uint64_t n) { return py::int_(n); };
    return {
        { "single_pass_runs", n(s.n_single_pass) },
        { "phase1_runs",      n(s.n_phase1) },
        { "phase2_runs",      n(s.n_phase2) },
        { "decode_steps",     n(s.n_decode) },
        { "tail_runs",        n(s.n_tail) },
        { "graphs_reused",    n(s.n_reused) },
        { "prefill_tokens",   n(s.n_tokens_prefill) },
        { "selections",       n(s.n_select) },
        { "single_pass_ms",   ms(s.t_single_pass_us) },
        { "phase1_ms",        ms(s.t_phase1_us) },
        { "phase2_ms",        ms(s.t_phase2_us) },
        { "decode_ms",        ms(s.t_decode_us) },
        { "tail_ms",          ms(s.t_tail_us) },
        { "select_ms",        ms(s.t_select_us) },
        { "gather_ms",        ms(s.t_gather_us) },
        { "attention_ms",     ms(s.t_attention_us) },
        { "score_ms",         ms(s.t_scores_us) },
        { "kv_bytes",         n(s.bytes_kv) },
        { "token_bytes",      n(s.bytes_token) },
        { "index_bytes",      n(s.bytes_index) },
        { "side_bytes",       n(s.bytes_side) },
        { "cold_bytes",       n(s.bytes_cold) },
        { "score_bytes",      n(s.bytes_scores) },
        { "memory_bytes",     n(s.bytes_memory) },
        { "intra_bytes",      n(s.bytes_intra) },
    };
}

// fields of Python's LosslessStats; none without a codec
static std::optional<named_values> lossless_stats(const h2o_kv & self) {
    llama_h2o_lossless_stats s;
    if (!llama_h2o_kv_lossless_stats(self, &s)) {
        return std::nullopt;
    }
    const auto n           = [](uint64_t n) { return py::int_(n); };
    const auto percentiles = [](const double (&us)[3]) { return py::make_tuple(us[0], us[1], us[2]); };
    return named_values {
        { "encoded_blocks", n(s.n_encoded) },
        { "raw_blocks",     n(s.n_raw) },
        { "failed_blocks",  n(s.n_failed) },
        { "skipped_blocks", n(s.n_skipped) },
        { "k_bytes",        n(s.bytes_raw[0]) },
        { "v_bytes",        n(s.bytes_raw[1]) },
        { "stored_k_bytes", n(s.bytes_stored[0]) },
        { "stored_v_bytes", n(s.bytes_stored[1]) },
        { "waiting_chunks", n(s.n_waiting) },
        { "queue_peak",     n(s.queue_peak) },
        { "encode_us",      percentiles(s.encode_us) },
        { "decode_us",      percentiles(s.decode_us) },
    };
}

static h2o_kv make_standalone(const model & mdl, uint32_t kv_size, const option_values & h2o,
        const std::string & type_k, const std::string & type_v) {
    computing::check();

    llama_h2o_kv_params params = {};
    params.h2o     = read_options(h2o);
    params.kv_size = kv_size;
    params.type_k  = find_type(type_k);
    params.type_v  = find_type(type_v);

    llama_call call(/*verbose =*/ false);

    auto * kv = llama_call::run("[KVCache] ", [&] { return llama_h2o_kv_init(mdl.ptr.get(), params); });
    if (!kv) {
        throw h2o_error("[KVCache] the cache cannot be made: " + call.reason());
    }
    return { std::shared_ptr<llama_h2o_kv>(kv, [model = mdl.ptr](llama_h2o_kv * kv) { llama_h2o_kv_free(kv); }) };
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

    py::class_<h2o_kv>(m, "KV")
        .def_static("of_context", [](context & ctx) -> std::optional<h2o_kv> {
            ctx.drop_draft();

            llama_h2o_kv * kv = ctx.h2o();
            if (!kv) {
                return std::nullopt;
            }
            return h2o_kv { std::shared_ptr<llama_h2o_kv>(ctx.ptr, kv) };
        }, py::arg("context"))
        .def_static("standalone", &make_standalone,
            py::arg("model"), py::arg("kv_size"), py::arg("h2o"), py::arg("type_k"), py::arg("type_v"))
        .def_property_readonly("info", [](const h2o_kv & self) { return llama_h2o_kv_info(self); })
        .def("n_memory", &of_layer<llama_h2o_kv_n_memory>, py::arg("chunk_end"))
        .def_property_readonly("stats", &stats)
        .def_property_readonly("lossless_stats", &lossless_stats)
        .def_property_readonly("layers", [](const h2o_kv & self) {
            std::vector<int32_t> layers(llama_h2o_kv_n_layer(self));
            for (size_t i = 0; i < layers.size(); ++i) {
                layers[i] = llama_h2o_kv_layer_id(self, i);
            }
            return layers;
        })
        .def("n_head",         &of_layer<llama_h2o_kv_n_head>,      py::arg("layer"))
        .def("n_head_kv",      &of_layer<llama_h2o_kv_n_head_kv>,   py::arg("layer"))
        .def("head_size_k",    &of_layer<llama_h2o_kv_head_size_k>, py::arg("layer"))
        .def("head_size_v",    &of_layer<llama_h2o_kv_head_size_v>, py::arg("layer"))
        .def("memory_indices", &memory_indices, py::arg("layer"))
        .def("set_memory_indices", &set_memory_indices, py::arg("layer"), py::arg("indices").noconvert())
        .def("history",        &history,        py::arg("chunk"), py::arg("layer"))
        .def("extra_keys",     &extra_keys,     py::arg("layer"), py::arg("head"), py::arg("tile"))
        .def("scores",         &scores,         py::arg("layer"))
        .def("keep_attention", [](h2o_kv & self, bool keep) { llama_h2o_kv_keep_attention(self, keep); },
            py::arg("keep"))
        .def("attention",      &attention,      py::arg("layer"))
        .def("get_k", &get_rows<llama_h2o_kv_get_k, llama_h2o_kv_head_size_k>,
            py::arg("layer"), py::arg("start"), py::arg("stop"))
        .def("get_v", &get_rows<llama_h2o_kv_get_v, llama_h2o_kv_head_size_v>,
            py::arg("layer"), py::arg("start"), py::arg("stop"))
        .def("clear", [](h2o_kv & self) { llama_h2o_kv_clear(self); })
        .def("next_chunk", [](h2o_kv & self, uint32_t n) { check(llama_h2o_kv_next_chunk(self, n), "next_chunk"); },
            py::arg("n"))
        .def("build_memory_set", [](h2o_kv & self, int32_t il, uint32_t chunk_end) {
            check(llama_h2o_kv_build_memory_set(self, il, chunk_end), "build_memory_set");
        }, py::arg("layer"), py::arg("chunk_end"))
        .def("init_chunk_scores", &init_chunk_scores, py::arg("layer"), py::arg("start"), py::arg("colsum").noconvert())
        .def("accumulate_memory_scores", &accumulate_memory_scores, py::arg("layer"), py::arg("colsum").noconvert())
        .def("set_kv", &set_kv, py::arg("layer"), py::arg("start"), py::arg("k").noconvert(), py::arg("v").noconvert())
        .def("gather_k_memory", &gather<llama_h2o_kv_gather_k_memory, llama_h2o_kv_head_size_k>, py::arg("layer"))
        .def("gather_v_memory", &gather<llama_h2o_kv_gather_v_memory, llama_h2o_kv_head_size_v>, py::arg("layer"));
}
