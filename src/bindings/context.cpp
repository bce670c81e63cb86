#include "context.h"

#include "llama-call.h"
#include "types.h"

#include <pybind11/stl.h>

#include <cstring>
#include <utility>
#include <vector>

static constexpr int64_t SIGNAL_INTERVAL_US = 50*1000;

context::context(std::shared_ptr<model> mdl, llama_context_params params, bool record, bool profile, bool verbose) : mdl(mdl), verbose(verbose) {
    llama_call call(verbose, llama_call::THROW);

    params.abort_callback      = on_abort;
    params.abort_callback_data = this;
    if (profile) {
        params.cb_eval           = llama_h2o_profile_callback;
        params.cb_eval_user_data = &kv;
    }

    // the context uses the model until it is freed
    llama_context * ctx = llama_call::run("[Llama] ", [&] { return llama_init_from_model(mdl->ptr.get(), params); });
    ptr.reset(ctx, [model = mdl->ptr](llama_context * ctx) { llama_free(ctx); });
    if (!ptr) {
        throw h2o_error("[Llama] llama.cpp cannot make a context: " + call.reason());
    }
    if (!llama_get_memory(ptr.get())) {
        throw h2o_error("[Llama] this model has no memory of past tokens: it cannot generate text");
    }

    kv = llama_get_h2o_kv(ptr.get());
    if (kv) {
        llama_h2o_kv_set_record(kv, record);
        llama_h2o_set_progress_callback(kv, on_progress, this);
    }
}

llama_context * context::get() const {
    if (!ptr) {
        throw std::invalid_argument("[Llama] this model is closed");
    }
    return ptr.get();
}

void context::close() {
    ptr.reset();
    mdl.reset();
    logits_valid = false;
}

void context::clear() {
    llama_memory_clear(llama_get_memory(get()), /*data =*/ true);
    logits_valid = false;

    n_ahead        = 0;
    stats_drafted  = 0;
    stats_accepted = 0;
    sync_text();
}

uint32_t context::n_cached() const {
    return llama_memory_seq_pos_max(llama_get_memory(get()), 0) + 1;
}

uint32_t context::n_tokens() const {
    return n_cached() - n_ahead;
}

void context::sync_text() {
    text.resize(n_cached(), -1);
}

int32_t context::min_position() const {
    return llama_memory_seq_pos_min(llama_get_memory(get()), 0);
}

bool context::remove(int32_t start) {
    drop_draft();

    llama_call call(verbose);
    logits_valid = false;

    const bool ok = llama_memory_seq_rm(llama_get_memory(get()), 0, start, -1);
    sync_text();
    return ok;
}

static llama_state_seq_flags state_flags(bool partial) {
    return partial ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

py::bytes context::get_state(bool partial) {
    drop_draft();

    llama_call call(verbose);

    const llama_state_seq_flags flags = state_flags(partial);

    std::string res(llama_state_seq_get_size_ext(get(), 0, flags), '\0');
    if (res.empty() || llama_state_seq_get_data_ext(get(), (uint8_t *) res.data(), res.size(), 0, flags) != res.size()) {
        throw h2o_error("[Llama] the state cannot be saved: " + call.reason());
    }
    return res;
}

void context::set_state(const std::string & state, bool partial) {
    drop_draft();

    llama_call call(verbose);
    logits_valid = false;

    const size_t n_read = llama_state_seq_set_data_ext(get(), (const uint8_t *) state.data(), state.size(), 0, state_flags(partial));
    if (!partial) {
        text.clear();
    }
    sync_text();
    if (n_read != state.size()) {
        throw h2o_error("[Llama] the state cannot be restored: " + call.reason());
    }
}

uint64_t context::kv_bytes() const {
    return llama_h2o_memory_bytes(get());
}

// Runs Python code from within llama_decode. What it raises is kept until llama_decode has returned.
template <typename F>
bool context::run_python(F call) {
    py::gil_scoped_acquire gil;
    try {
        call();
    } catch (...) {
        error = std::current_exception();
    }
    return !error;
}

bool context::on_abort(void * data) {
    auto & self = *static_cast<context *>(data);

    const int64_t t_us = ggml_time_us();
    if (!self.error && t_us - self.t_signals_us >= SIGNAL_INTERVAL_US) {
        self.t_signals_us = t_us;
        self.run_python([] {
            if (PyErr_CheckSignals() != 0) {
                throw py::error_already_set();
            }
        });
    }
    return self.error != nullptr;
}

bool context::on_progress(int32_t /*phase*/, uint32_t n_done, uint32_t /*n_tokens*/, void * data) {
    auto & self = *static_cast<context *>(data);

    if (n_done == 0 || self.progress.is_none()) {
        return !self.error;
    }
    return self.run_python([&] { self.progress(n_done); });
}

// H2O undoes a call that fails by itself. Without H2O a part of it may be left behind.
void context::undo(uint32_t n_keep) {
    logits_valid = false;

    llama_memory_t mem = llama_get_memory(get());
    if (n_tokens() > n_keep && !llama_memory_seq_rm(mem, 0, n_keep, -1)) {
        llama_memory_clear(mem, /*data =*/ true); // a recurrent state has no past to return to
    }
    sync_text();
}

void context::decode(const token_array & tokens, logits_array & logits, uint32_t dense_tail, bool generated, py::object progress) {
    drop_draft();
    run(tokens, logits, dense_tail, generated, std::move(progress));
}

void context::run(const token_array & tokens, logits_array & logits, uint32_t dense_tail, bool generated, py::object progress) {
    llama_context * ctx = get();

    const int64_t n      = tokens.size();
    const int64_t n_rows = logits.ndim() == 2 ? logits.shape(0) : -1;
    if (n < 1 || n > llama_n_batch(ctx) || (n_rows != n && n_rows != 1 && n_rows != 0) || logits.shape(1) != mdl->n_vocab()) {
        throw std::invalid_argument("[Context.decode] tokens or logits have the wrong shape");
    }

    std::vector<llama_token> ids(tokens.data(), tokens.data() + n);
    std::vector<int8_t>      outputs(n, n_rows == n);
    outputs.back() = n_rows > 0;

    llama_batch batch = llama_batch_get_one(ids.data(), n);
    batch.logits = outputs.data();

    float * dst = logits.mutable_data();

    const uint32_t n_before = n_tokens();

    this->progress = std::move(progress);
    error = nullptr;
    if (kv) {
        llama_h2o_set_call(kv, generated ? LLAMA_H2O_CALL_DECODE : LLAMA_H2O_CALL_PREFILL, dense_tail);
    }

    int32_t     status;
    std::string reason;
    {
        py::gil_scoped_release no_gil;
        llama_call call(verbose);
        try {
            status = llama_decode(ctx, batch);
            if (status == 0 && n_rows > 0) {
                memcpy(dst, llama_get_logits(ctx), n_rows*mdl->n_vocab()*sizeof(float));
            }
        } catch (const std::exception & e) {
            status = -1;
            reason = e.what();
        }
        reason = reason.empty() ? call.reason() : reason;
    }
    this->progress = py::none();

    if (error || status != 0) {
        undo(n_before);
    }
    if (error) {
        std::rethrow_exception(std::exchange(error, nullptr));
    }
    if (status != 0) {
        throw h2o_error("[Llama.eval] llama.cpp failed (status " + std::to_string(status) + "): " + reason);
    }
    text.insert(text.end(), ids.begin(), ids.end());

    logits_valid = n_rows > 0;
    i_logits     = -1;
    restored_logits.clear();
}

void init_context(py::module_ & m) {
    m.def("type_size", [](const std::string & type) {
        const ggml_type t = find_type(type);
        return (double) ggml_type_size(t)/ggml_blck_size(t);
    }, py::arg("type"), "Bytes per element.");

    py::class_<context, std::shared_ptr<context>>(m, "Context")
        .def(py::init([](
                std::shared_ptr<model> mdl, uint32_t n_ctx, uint32_t n_batch, uint32_t n_ubatch, int32_t n_threads,
                const std::string & type_k, const std::string & type_v, const std::string & flash_attn,
                uint32_t local_window, uint32_t heavy_budget, uint32_t sink_tokens, uint32_t lookup_budget, uint32_t tile, const std::string & retrieval, const std::string & dense_layers,
                const std::string & scorer, uint32_t pooling, const std::string & score_type, const std::string & schedule, const std::string & decode, bool record, bool profile, bool verbose) {
            llama_context_params params = llama_context_default_params();
            params.n_ctx           = n_ctx;
            params.n_batch         = n_batch;
            params.n_ubatch        = n_ubatch;
            params.n_threads       = n_threads;
            params.n_threads_batch = n_threads;
            params.type_k          = find_type(type_k);
            params.type_v          = find_type(type_v);
            params.flash_attn_type =
                flash_attn == "on"  ? LLAMA_FLASH_ATTN_TYPE_ENABLED  :
                flash_attn == "off" ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;

            llama_h2o_params h2o = llama_h2o_default_params();
            h2o.local_window  = local_window;
            h2o.heavy_budget  = heavy_budget;
            h2o.sink_tokens   = sink_tokens;
            h2o.scorer        = scorer.c_str();
            h2o.pooling       = pooling;
            h2o.score_type    = find_type(score_type);
            h2o.lookup_budget = lookup_budget;
            h2o.tile          = tile;
            llama_h2o_params_set(&h2o, "dense", dense_layers.c_str()); // none if there are none
            llama_h2o_params_set(&h2o, "schedule", schedule.c_str());
            llama_h2o_params_set(&h2o, "decode", decode.c_str());
            llama_h2o_params_set(&h2o, "retrieval", retrieval.c_str());
            params.h2o = llama_h2o_params_enabled(&h2o) ? &h2o : nullptr;

            py::gil_scoped_release no_gil;
            return std::make_shared<context>(std::move(mdl), params, record, profile, verbose);
        }), py::kw_only(),
            py::arg("model"), py::arg("n_ctx"), py::arg("n_batch"), py::arg("n_ubatch"), py::arg("n_threads"),
            py::arg("type_k"), py::arg("type_v"), py::arg("flash_attn"),
            py::arg("local_window"), py::arg("heavy_budget"), py::arg("sink_tokens"), py::arg("lookup_budget"), py::arg("tile"), py::arg("retrieval"), py::arg("dense_layers"), py::arg("scorer"), py::arg("pooling"),
            py::arg("score_type"), py::arg("schedule"), py::arg("decode"), py::arg("record"), py::arg("profile"), py::arg("verbose"))
        .def("decode", &context::decode, py::arg("tokens").noconvert(), py::arg("logits").noconvert(), py::arg("dense_tail"), py::arg("generated"), py::arg("progress"))
        .def("decode_draft", &context::decode_draft, py::arg("tokens").noconvert(), py::arg("logits").noconvert())
        .def("accept_draft", &context::accept_draft, py::arg("token"))
        .def("find_draft",   &context::find_draft,   py::arg("token"), py::arg("n_min"), py::arg("n_max"))
        .def("clear", &context::clear)
        .def("rewind_points", &context::rewind_points, py::arg("pos"))
        .def("rewind", &context::rewind, py::arg("pos"))
        .def("snapshot", &context::snapshot)
        .def("restore", &context::restore, py::arg("state"), py::arg("tokens").noconvert(), py::arg("logits").noconvert())
        .def("remove", &context::remove, py::arg("start"))
        .def("get_state", &context::get_state, py::arg("partial"))
        .def("set_state", &context::set_state, py::arg("state"), py::arg("partial"))
        .def("close", &context::close)
        .def_property_readonly("n_tokens",   &context::n_tokens)
        .def_property_readonly("tokens",     &context::tokens)
        .def_property_readonly("last_logits", [](const context & self) { return py::array_t<float>(self.mdl->n_vocab(), self.last_logits()); })
        .def_property_readonly("min_position", &context::min_position)
        .def_property_readonly("kv_bytes",   &context::kv_bytes)
        .def_property_readonly("has_logits", &context::has_logits)
        .def_property_readonly("logits_index", &context::logits_index)
        .def_property_readonly("n_drafted",  &context::n_drafted)
        .def_property_readonly("n_accepted", &context::n_accepted);
}
