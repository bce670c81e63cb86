#include "bindings/context/context.h"

#include "bindings/context/decode-batch.h"
#include "bindings/h2o-options.h"
#include "bindings/llama-call.h"
#include "h2o/llama/memory/memory.h"
#include "h2o/llama/memory/state/text-state.h"
#include "h2o/text/embedding-id.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

context::context(std::shared_ptr<model> mdl, llama_context_params params, bool record, bool profile, bool verbose)
    : mdl(mdl), seq_id(0), record(record), verbose(verbose), gives_embeddings(params.embeddings),
      calls(std::make_shared<callbacks>()) {
    params.abort_callback      = callbacks::on_abort;
    params.abort_callback_data = calls.get();
    if (profile) {
        params.cb_eval           = llama_h2o_profile_callback;
        params.cb_eval_user_data = &calls->kv;
    }

    llama_call call(verbose, llama_call::THROW);

    llama_context * made = llama_call::run("[Llama] ", [&] { return llama_init_from_model(mdl->ptr.get(), params); });
    if (!made) {
        throw h2o_error("[Llama] llama.cpp cannot make a context: " + call.reason());
    }
    // the context uses the model and the callbacks until it is freed
    ptr.reset(made, [model = mdl->ptr, calls = calls](llama_context * ctx) { computing::free<llama_free>(ctx); });
    llama_set_adapters_lora(made, mdl->adapters.data(), mdl->adapters.size(), mdl->adapter_scales.data());
    if (!llama_get_memory(made) && !gives_embeddings) {
        throw h2o_error("[Llama] this model has no memory of past tokens: it cannot generate text");
    }
    init();
}

context::context(const context & first, llama_seq_id seq_id)
    : ptr(first.ptr), mdl(first.mdl), seq_id(seq_id), record(first.record), verbose(first.verbose),
      gives_embeddings(first.gives_embeddings), calls(first.calls) {
    if (seq_id < 1 || seq_id >= (llama_seq_id) llama_n_seq_max(get())) {
        throw std::invalid_argument("[Context] there is no such sequence");
    }
    init();
}

void context::init() {
    kv = llama_get_h2o_kv_seq(ptr.get(), seq_id);
    if (kv) {
        llama_h2o_kv_set_record(kv, record);
        llama_h2o_set_progress_callback(kv, callbacks::on_progress, calls.get());
    }
}

int64_t context::row_size() const {
    return gives_embeddings ? llama_model_n_embd_out(mdl->ptr.get()) : mdl->n_vocab();
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
}

void context::clear_memory(bool data) {
    llama_memory_t mem = llama_get_memory(get());
    if (llama_n_seq_max(get()) == 1) {
        llama_memory_clear(mem, data);
    } else {
        llama_memory_seq_rm(mem, seq_id, -1, -1); // the whole of a sequence can always be removed
    }
}

void context::clear() {
    clear_memory(/*data =*/ true);
    n_ahead = 0;
    sync_text();
}

void context::copy_from(context & other) {
    other.drop_draft();
    drop_draft();
    if (ptr != other.ptr || n_tokens() > 0) {
        throw std::invalid_argument("[Context.copy_from] a sequence can only be copied to an empty one of the same context");
    }
    if (kv) {
        llama_call call(verbose);
        llama_call::run("[Llama.fork] ", [&] { llama_memory_seq_cp(llama_get_memory(get()), other.seq_id, seq_id, -1, -1); });
        if (n_tokens() != other.n_tokens()) {
            throw h2o_error("[Llama.fork] llama.cpp cannot copy the sequence: " + call.reason());
        }
    } else if (other.n_tokens() > 0) {
        set_state(other.get_state()); // upstream's copy is made later, when tokens are decoded
    }

    text = other.text;
}

uint32_t context::n_cached() const {
    return llama_memory_seq_pos_max(llama_get_memory(get()), seq_id) + 1;
}

uint32_t context::n_tokens() const {
    return n_cached() - n_ahead;
}

void context::sync_text() {
    const size_t n = n_cached();
    while (text.size() < n) {
        text.push_back(text.size() < arranged.size() ? arranged[text.size()] : -1);
    }
    text.resize(n);
}

// H2O undoes a call that fails by itself. Without H2O a part of it may be left behind.
void context::undo(uint32_t n_keep) {
    if (n_tokens() > n_keep && !llama_memory_seq_rm(llama_get_memory(get()), seq_id, n_keep, -1)) {
        clear_memory(/*data =*/ true); // a recurrent state has no past to return to
    }
    sync_text();
}

void context::compute(const llama_batch & batch, float * logits, int64_t n_rows, py::object progress) {
    calls->begin(kv, std::move(progress));

    int32_t     status = -1;
    std::string reason;
    {
        computing no_gil;
        llama_call call(verbose);
        try {
            status = llama_decode(get(), batch);
            if (status == 0 && n_rows > 0) {
                const float * found = gives_embeddings ? llama_get_embeddings(get()) : llama_get_logits(get());
                memcpy(logits, found, n_rows*row_size()*sizeof(float));
            }
        } catch (const std::exception & e) {
            status = -1;
            reason = e.what();
        }
        if (reason.empty()) {
            reason = call.reason();
        }
    }
    calls->end();

    if (calls->failed()) {
        calls->rethrow();
    }
    if (status != 0) {
        throw h2o_error("[Llama.eval] llama.cpp failed (status " + std::to_string(status) + "): " + reason);
    }
}

static bool has_shape(const context::rows_array & rows, int64_t n, int64_t size) {
    return rows.ndim() == 2 && rows.shape(0) == n && rows.shape(1) == size;
}

// Python has checked the tokens.
static void check_call(bool ok) {
    if (!ok) {
        throw std::invalid_argument("[Context] expected 1 to n_batch tokens, and as many rows of embeddings and logits");
    }
}

void context::decode(const token_array & ids, const rows_array & rows, rows_array & logits, uint32_t dense_tail,
        bool generated, py::object progress, uint32_t n_draft) {
    drop_draft();

    const int64_t n      = ids.size();
    const int64_t n_rows = logits.ndim() == 2 && logits.shape(0) <= 1 ? logits.shape(0) : n;
    check_call(n >= 1 && n <= llama_n_batch(get()) && has_shape(logits, n_rows, row_size()));

    const uint32_t n_before = n_tokens();
    const bool     is_text  = rows.size() == 0;

    decode_batch batch({ ids.data(), ids.data() + n });
    if (!is_text) {
        check_call(has_shape(rows, n, llama_model_n_embd_inp(mdl->ptr.get())));
        batch.set_embeddings(rows.data(), n_before, *mdl);
    }
    std::fill(batch.seq_id.begin(), batch.seq_id.end(), seq_id);
    std::fill(batch.outputs.begin(), batch.outputs.end(), n_rows == n);
    batch.outputs.back() = n_rows > 0;

    if (kv) { // rows are a prompt's
        llama_h2o_set_call(kv, generated && is_text ? LLAMA_H2O_CALL_DECODE : LLAMA_H2O_CALL_PREFILL, dense_tail);
    }
    try {
        compute(batch.get(), logits.mutable_data(), n_rows, std::move(progress));
    } catch (...) {
        undo(n_before);
        throw;
    }
    text.insert(text.end(), batch.ids.begin(), batch.ids.end());
    sync_text(); // it has reached a piece
    n_ahead = n_draft;
}

void context::decode_each(const std::vector<context *> & sequences, const token_array & tokens, rows_array & logits) {
    const int64_t n = tokens.size();
    check_call(n >= 1 && sequences.size() == (size_t) n && has_shape(logits, n, sequences[0]->mdl->n_vocab()));

    decode_batch batch({ tokens.data(), tokens.data() + n });
    std::vector<uint32_t> n_before(n);
    for (int64_t i = 0; i < n; ++i) {
        auto & sequence = *sequences[i];
        sequence.drop_draft();

        n_before[i]     = sequence.n_tokens();
        batch.seq_id[i] = sequence.seq_id;
        if (sequence.kv) {
            llama_h2o_set_call(sequence.kv, LLAMA_H2O_CALL_DECODE, /*dense_tail =*/ 0);
        }
    }

    try {
        sequences[0]->compute(batch.get(), logits.mutable_data(), n, py::none());
    } catch (...) {
        for (int64_t i = 0; i < n; ++i) {
            sequences[i]->undo(n_before[i]);
        }
        throw;
    }
    for (int64_t i = 0; i < n; ++i) {
        sequences[i]->text.push_back(batch.ids[i]);
        sequences[i]->sync_text();
    }
}

// Where a snapshot has rows of tokens: offset, first position, number of rows, bytes of a row. And where it can be cut.
static auto state_layout(context & self) {
    self.drop_draft();

    std::vector<std::array<uint64_t, 4>> rows;
    const auto layout = llama_call::run("[Llama.snapshot] ", [&] { return h2o_state_layout_of(self.get(), self.seq_id); });
    for (const auto & r : layout.rows) {
        rows.push_back({ r.offset, r.first, r.n, r.row_bytes });
    }
    return std::make_pair(rows, layout.points);
}

// Keeps a record at each chunk's end, where another text can continue. Not with side caches: each record would copy them.
static void keep_boundaries(const context & self) {
    if (auto * kv = self.h2o(); kv && kv->memory.caches.side.empty()) {
        llama_h2o_kv_keep_boundaries(kv);
    }
}

// The nearest positions to which the sequence can be rewound, at or before pos and at or after it.
static std::pair<uint32_t, uint32_t> rewind_points(context & self, uint32_t pos) {
    self.drop_draft();

    uint32_t below = std::min(pos, self.n_tokens());
    uint32_t above = below;
    while (!self.can_rewind(below)) {
        below--;
    }
    while (!self.can_rewind(above)) {
        above++;
    }
    return { below, above };
}

// How positions are turned into angles where that is not the model's own way, by llama.cpp's names. The type of scaling
// is the number that it has in enum llama_rope_scaling_type.
static void apply_rope(const std::map<std::string, double> & rope, llama_context_params & params) {
    static const std::map<std::string, float llama_context_params::*> numbers = {
        { "rope_freq_base",   &llama_context_params::rope_freq_base   },
        { "rope_freq_scale",  &llama_context_params::rope_freq_scale  },
        { "yarn_ext_factor",  &llama_context_params::yarn_ext_factor  },
        { "yarn_attn_factor", &llama_context_params::yarn_attn_factor },
        { "yarn_beta_fast",   &llama_context_params::yarn_beta_fast   },
        { "yarn_beta_slow",   &llama_context_params::yarn_beta_slow   },
    };

    for (const auto & [name, value] : rope) {
        if (name == "rope_scaling_type") {
            params.rope_scaling_type = (llama_rope_scaling_type) value;
        } else if (name == "yarn_orig_ctx") {
            params.yarn_orig_ctx = (uint32_t) value;
        } else {
            params.*numbers.at(name) = (float) value;
        }
    }
}

void init_context(py::module_ & m) {
    py::class_<context, std::shared_ptr<context>>(m, "Context")
        .def(py::init([](
                std::shared_ptr<model> mdl, uint32_t n_ctx, uint32_t n_seq_max, uint32_t n_batch, uint32_t n_ubatch,
                int32_t n_threads, int32_t n_threads_batch,
                const std::string & type_k, const std::string & type_v, const std::string & flash_attn,
                const std::map<std::string, double> & rope, const option_values & h2o, bool record, bool profile,
                bool verbose, bool embeddings) {
            llama_context_params params = llama_context_default_params();
            params.n_ctx           = n_ctx*n_seq_max;
            params.n_seq_max       = n_seq_max;
            params.n_batch         = n_batch;
            params.n_ubatch        = n_ubatch;
            params.n_threads       = n_threads;
            params.n_threads_batch = n_threads_batch > 0 ? n_threads_batch : n_threads;
            params.embeddings      = embeddings;
            params.pooling_type    = embeddings ? LLAMA_POOLING_TYPE_NONE : params.pooling_type;
            params.type_k          = find_type(type_k);
            params.type_v          = find_type(type_v);
            params.flash_attn_type =
                flash_attn == "on"  ? LLAMA_FLASH_ATTN_TYPE_ENABLED  :
                flash_attn == "off" ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;

            apply_rope(rope, params);

            const llama_h2o_params h2o_params = read_options(h2o);
            params.h2o = &h2o_params;

            computing no_gil(/*starts_threads =*/ h2o_params.lossless.on);
            return std::make_shared<context>(std::move(mdl), params, record, profile, verbose);
        }), py::kw_only(),
            py::arg("model"), py::arg("n_ctx"), py::arg("n_seq_max") = 1, py::arg("n_batch"), py::arg("n_ubatch"),
            py::arg("n_threads"), py::arg("n_threads_batch") = 0, py::arg("type_k") = "f16", py::arg("type_v") = "f16",
            py::arg("flash_attn") = "auto", py::arg("rope"), py::arg("h2o"), py::arg("record") = false,
            py::arg("profile") = false, py::arg("verbose") = false, py::arg("embeddings") = false)
        .def("decode", &context::decode, py::arg("ids").noconvert(), py::arg("rows").noconvert(),
            py::arg("logits").noconvert(), py::arg("dense_tail"), py::arg("generated"), py::arg("progress"),
            py::arg("n_draft") = 0)
        .def("sequence", [](const context & self, llama_seq_id i) { return std::make_shared<context>(self, i); }, py::arg("i"))
        .def("copy_from", &context::copy_from, py::arg("other"))
        .def_static("decode_each", &context::decode_each, py::arg("sequences"), py::arg("tokens").noconvert(), py::arg("logits").noconvert())
        .def("accept_draft", &context::accept_draft, py::arg("token"))
        .def("find_draft",   &context::find_draft,   py::arg("token"), py::arg("n_min"), py::arg("n_max"))
        .def("clear", &context::clear)
        .def("rewind_points", &rewind_points, py::arg("pos"))
        .def("rewind", &context::rewind, py::arg("pos"))
        .def("state_layout", &state_layout)
        .def("keep_boundaries", &keep_boundaries)
        .def("arrange", &context::arrange, py::arg("n_kept"), py::arg("pieces"), py::arg("ids").noconvert())
        .def("restore", &context::restore, py::arg("state"), py::arg("tokens").noconvert())
        .def("get_state", &context::get_state)
        .def("set_state", &context::set_state, py::arg("state"))
        .def("check", [](const context & self) {
            if (const auto * kv = llama_get_h2o_kv_seq(self.get(), 0)) {
                kv->memory.check();
            }
        }, "All sequences; raises RuntimeError if a part of the memory does not agree with another one.")
        .def("close", &context::close)
        .def_property_readonly("n_threads",  [](const context & self) { return std::make_pair(llama_n_threads(self.get()), llama_n_threads_batch(self.get())); })
        .def_property_readonly("has_memory", [](const context & self) { return !!llama_get_memory(self.get()); })
        .def_property_readonly("n_tokens",   &context::n_tokens)
        .def_property_readonly("tokens",     &context::tokens)
        .def_property_readonly("min_position", [](const context & self) { return llama_memory_seq_pos_min(llama_get_memory(self.get()), self.seq_id); })
        // pieces that it has not reached, first and end; the text that they were arranged for; where it is not exact
        .def_property_readonly("unseen",     [](const context & self) { return self.h2o() ? self.h2o()->state().unseen : std::map<uint32_t, uint32_t>(); })
        .def_property_readonly("arranged",   [](const context & self) { return context::token_array(self.arranged.size(), self.arranged.data()); })
        .def_property_readonly("exact_end",  [](const context & self) { return self.h2o() ? self.h2o()->state().exact_end : UINT32_MAX; })
        .def_property_readonly("move_refusal", [](const context & self) { return self.h2o() ? self.h2o()->memory.move_refusal(*self.h2o()) : "[h2o] rows move only with H2O"; })
        .def_property_readonly("kv_bytes",   [](const context & self) { return llama_h2o_memory_bytes(self.get()); });

    m.def("find_pieces", [](const context::token_array & text, const context::token_array & next, uint32_t start, uint32_t end, uint32_t n_min) {
        std::vector<std::array<uint32_t, 3>> res;
        for (const auto & [from, n, to] : h2o_find_pieces({ text.data(), text.data() + text.size() }, { next.data(), next.data() + std::min<size_t>(end, next.size()) }, start, n_min)) {
            res.push_back({ from, n, to });
        }
        return res;
    }, py::arg("text").noconvert(), py::arg("next").noconvert(), py::arg("start"), py::arg("end"), py::arg("n_min"), "Parts of a text that come again in the next one: (from, n, to).");

    m.def("embedding_ids", [](const context::rows_array & rows) {
        check_call(rows.ndim() == 2);
        context::token_array ids(rows.shape(0));
        for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
            ids.mutable_at(i) = h2o_embedding_id(rows.data(i), rows.shape(1));
        }
        return ids;
    }, py::arg("rows").noconvert(), "What stands for rows of embeddings among token ids.");
}
