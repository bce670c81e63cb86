#include "bindings/context/context.h"

#include "bindings/context/decode-batch.h"
#include "bindings/context/rope.h"
#include "bindings/h2o-options.h"
#include "bindings/llama-call.h"
#include "bindings/types.h"
#include "h2o/text/embedding-id.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

llama_context * open_context(model & mdl, const llama_context_params & params, const std::string & where, bool verbose) {
    llama_call call(verbose, llama_call::THROW);

    llama_context * res = llama_call::run(where, [&] { return llama_init_from_model(mdl.ptr.get(), params); });
    if (!res) {
        throw h2o_error(where + "llama.cpp cannot make a context: " + call.reason());
    }
    llama_set_adapters_lora(res, mdl.adapters.data(), mdl.adapters.size(), mdl.adapter_scales.data());
    return res;
}

context::context(std::shared_ptr<model> mdl, llama_context_params params, bool record, bool profile, bool verbose)
    : mdl(mdl), seq_id(0), record(record), verbose(verbose), calls(std::make_shared<callbacks>()) {
    params.abort_callback      = callbacks::on_abort;
    params.abort_callback_data = calls.get();
    if (profile) {
        params.cb_eval           = llama_h2o_profile_callback;
        params.cb_eval_user_data = &calls->kv;
    }

    // the context uses the model and the callbacks until it is freed
    ptr.reset(open_context(*mdl, params, "[Llama] ", verbose),
            [model = mdl->ptr, calls = calls](llama_context * ctx) { computing::free<llama_free>(ctx); });
    if (!llama_get_memory(ptr.get())) {
        throw h2o_error("[Llama] this model has no memory of past tokens: it cannot generate text");
    }
    init();
}

context::context(const context & first, llama_seq_id seq_id)
    : ptr(first.ptr), mdl(first.mdl), seq_id(seq_id), record(first.record), verbose(first.verbose), calls(first.calls) {
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

llama_context * context::get() const {
    if (!ptr) {
        throw std::invalid_argument("[Llama] this model is closed");
    }
    return ptr.get();
}

void context::close() {
    ptr.reset();
    mdl.reset();
    kept_logits.clear();
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
    kept_logits.clear();

    n_ahead        = 0;
    stats_drafted  = 0;
    stats_accepted = 0;
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
        set_state(other.get_state(/*partial =*/ false), /*partial =*/ false); // upstream's copy is made later, when tokens are decoded
    }

    text        = other.text;
    kept_logits = other.kept_logits;
    i_logits    = other.i_logits;
}

const float * context::last_logits() const {
    return kept_logits.empty() ? nullptr : kept_logits.data() + kept_logits.size() + (int64_t) i_logits*mdl->n_vocab();
}

context::logits_array context::last_logits_array() const {
    if (!last_logits()) {
        throw h2o_error("[Context.last_logits] there are no logits: the last call asked for none");
    }
    return logits_array(mdl->n_vocab(), last_logits());
}

uint32_t context::n_cached() const {
    return llama_memory_seq_pos_max(llama_get_memory(get()), seq_id) + 1;
}

uint32_t context::n_tokens() const {
    return n_cached() - n_ahead;
}

void context::sync_text() {
    text.resize(n_cached(), -1);
}

bool context::remove(int32_t start) {
    drop_draft();

    llama_call call(verbose);
    kept_logits.clear();

    const bool ok = llama_memory_seq_rm(llama_get_memory(get()), seq_id, start, -1);
    sync_text();
    return ok;
}

// H2O undoes a call that fails by itself. Without H2O a part of it may be left behind.
void context::undo(uint32_t n_keep) {
    kept_logits.clear();

    if (n_tokens() > n_keep && !llama_memory_seq_rm(llama_get_memory(get()), seq_id, n_keep, -1)) {
        clear_memory(/*data =*/ true); // a recurrent state has no past to return to
    }
    sync_text();
}

bool context::compute(const llama_batch & batch, float * logits, int64_t n_rows, py::object progress) {
    calls->begin(kv, std::move(progress));

    int32_t status;
    failure.clear();
    {
        computing no_gil;
        llama_call call(verbose);
        try {
            status = llama_decode(get(), batch);
            if (status == 0 && n_rows > 0) {
                memcpy(logits, llama_get_logits(get()), n_rows*mdl->n_vocab()*sizeof(float));
            }
        } catch (const std::exception & e) {
            status  = -1;
            failure = e.what();
        }
        failure = "(status " + std::to_string(status) + "): " + (failure.empty() ? call.reason() : failure);
    }
    calls->end();

    return !calls->failed() && status == 0;
}

void context::raise_failure() {
    if (calls->failed()) {
        calls->rethrow();
    }
    throw h2o_error("[Llama.eval] llama.cpp failed " + failure);
}

void context::add_tokens(const llama_token * ids, size_t n, const float * rows, size_t n_rows) {
    text.insert(text.end(), ids, ids + n);
    kept_logits.assign(rows, rows + n_rows*mdl->n_vocab());
    i_logits = -1;
}

static std::string shape_of(const context::logits_array & logits) {
    std::string res;
    for (py::ssize_t i = 0; i < logits.ndim(); ++i) {
        res += (i > 0 ? ", " : "") + std::to_string(logits.shape(i));
    }
    return "[" + res + "]";
}

void context::check_shapes(const char * function, int64_t n, const logits_array & logits, int64_t n_rows) const {
    if (n < 1 || n > llama_n_batch(get())) {
        throw std::invalid_argument(std::string("[Context.") + function + "] expected 1 to " + std::to_string(llama_n_batch(get())) +
            " tokens, got " + std::to_string(n));
    }
    if (logits.ndim() != 2 || logits.shape(0) != n_rows || logits.shape(1) != mdl->n_vocab()) {
        throw std::invalid_argument(std::string("[Context.") + function + "] expected logits of shape [" + std::to_string(n_rows) + ", " +
            std::to_string(mdl->n_vocab()) + "], got " + shape_of(logits));
    }
}

void context::run(decode_batch & batch, logits_array & logits, uint32_t dense_tail, bool generated, py::object progress, uint32_t n_keep) {
    const int64_t n      = batch.ids.size();
    const int64_t n_rows = logits.ndim() == 2 && logits.shape(0) <= 1 ? logits.shape(0) : n;
    check_shapes("decode", n, logits, n_rows);

    std::fill(batch.seq_id.begin(), batch.seq_id.end(), seq_id);
    std::fill(batch.outputs.begin(), batch.outputs.end(), n_rows == n);
    batch.outputs.back() = n_rows > 0;

    const uint32_t n_before = n_tokens();

    if (kv) {
        llama_h2o_set_call(kv, generated ? LLAMA_H2O_CALL_DECODE : LLAMA_H2O_CALL_PREFILL, dense_tail);
    }
    float * rows = logits.mutable_data();
    if (!compute(batch.get(), rows, n_rows, std::move(progress))) {
        undo(n_before);
        raise_failure();
    }
    const int64_t n_kept = std::min<int64_t>(n_keep, n_rows);
    add_tokens(batch.ids.data(), n, rows + (n_rows - n_kept)*mdl->n_vocab(), n_kept);
}

void context::decode(const token_array & ids, const logits_array & rows, logits_array & logits, uint32_t dense_tail, bool generated,
        py::object progress) {
    drop_draft();

    decode_batch batch({ ids.data(), ids.data() + ids.size() });
    if (rows.size() > 0) {
        const int64_t n_embd = llama_model_n_embd_inp(mdl->ptr.get());
        if (rows.ndim() != 2 || rows.shape(0) != ids.size() || rows.shape(1) != n_embd) {
            throw std::invalid_argument("[Context.decode] expected rows of shape [" + std::to_string(ids.size()) + ", " +
                std::to_string(n_embd) + "], got " + shape_of(rows));
        }
        batch.set_embeddings(rows.data(), n_tokens(), *mdl);
    }
    run(batch, logits, dense_tail, generated && rows.size() == 0, std::move(progress), /*n_keep =*/ 1); // rows are a prompt's
}

void context::decode_each(const std::vector<context *> & sequences, const token_array & tokens, logits_array & logits) {
    const int64_t n = tokens.size();
    if (n < 1 || sequences.size() != (size_t) n) {
        throw std::invalid_argument("[Context.decode_each] expected a token for each of " + std::to_string(sequences.size()) +
            " sequences, got " + std::to_string(n));
    }
    sequences[0]->check_shapes("decode_each", n, logits, n);
    for (int64_t i = 1; i < n; ++i) {
        if (sequences[i]->ptr != sequences[0]->ptr || std::any_of(sequences.begin(), sequences.begin() + i,
                [&](const context * other) { return other->seq_id == sequences[i]->seq_id; })) {
            throw std::invalid_argument("[Context.decode_each] expected different sequences of one context, but sequence " +
                std::to_string(i) + " is another one's, or is there twice");
        }
    }

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

    float * rows = logits.mutable_data();
    if (!sequences[0]->compute(batch.get(), rows, n, py::none())) {
        for (int64_t i = 0; i < n; ++i) {
            sequences[i]->undo(n_before[i]);
        }
        sequences[0]->raise_failure();
    }
    for (int64_t i = 0; i < n; ++i) {
        sequences[i]->add_tokens(&batch.ids[i], 1, rows + i*sequences[i]->mdl->n_vocab(), 1);
    }
}

// Ranges of positions, first and last, to which the sequence could be rewound after a restore.
static std::vector<std::pair<uint32_t, uint32_t>> state_points(context & self) {
    self.drop_draft();

    std::vector<llama_h2o_points> points(llama_h2o_state_points(self.get(), self.seq_id, nullptr, 0));
    llama_h2o_state_points(self.get(), self.seq_id, points.data(), points.size());

    std::vector<std::pair<uint32_t, uint32_t>> res;
    for (const auto & [first, last] : points) {
        res.push_back({ first, last });
    }
    return res;
}

// Where a snapshot has rows of tokens: offset, first position, number of rows, bytes of a row. See llama_h2o_state_rows().
static std::vector<std::array<uint64_t, 4>> state_rows(context & self) {
    self.drop_draft();

    const auto get_rows = [&](llama_h2o_rows * dst, size_t n) {
        return llama_call::run("[Llama.snapshot] ", [&] { return llama_h2o_state_rows(self.get(), self.seq_id, dst, n); });
    };
    std::vector<llama_h2o_rows> rows(get_rows(nullptr, 0));
    rows.resize(get_rows(rows.data(), rows.size()));

    std::vector<std::array<uint64_t, 4>> res;
    for (const auto & r : rows) {
        res.push_back({ r.offset, r.first, r.n, r.row_bytes });
    }
    return res;
}

// Keeps a record at each chunk's end, where another text can continue. Not with side caches: each record would copy them.
static void keep_boundaries(const context & self) {
    if (auto * kv = self.h2o(); kv && llama_h2o_kv_stats(kv).bytes_side == 0) {
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

void init_context(py::module_ & m) {
    py::class_<context, std::shared_ptr<context>>(m, "Context")
        .def(py::init([](
                std::shared_ptr<model> mdl, uint32_t n_ctx, uint32_t n_seq_max, uint32_t n_batch, uint32_t n_ubatch,
                int32_t n_threads, int32_t n_threads_batch,
                const std::string & type_k, const std::string & type_v, const std::string & flash_attn,
                const rope_options & rope, const option_values & h2o, bool record, bool profile, bool verbose) {
            llama_context_params params = llama_context_default_params();
            params.n_ctx           = n_ctx*n_seq_max;
            params.n_seq_max       = n_seq_max;
            params.n_batch         = n_batch;
            params.n_ubatch        = n_ubatch;
            params.n_threads       = n_threads;
            params.n_threads_batch = n_threads_batch;
            params.type_k          = find_type(type_k);
            params.type_v          = find_type(type_v);
            params.flash_attn_type =
                flash_attn == "on"  ? LLAMA_FLASH_ATTN_TYPE_ENABLED  :
                flash_attn == "off" ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;

            apply(rope, params);

            const llama_h2o_params h2o_params = read_options(h2o);
            params.h2o = &h2o_params;

            computing no_gil(/*starts_threads =*/ h2o_params.lossless.mode != LLAMA_H2O_LOSSLESS_OFF);
            return std::make_shared<context>(std::move(mdl), params, record, profile, verbose);
        }), py::kw_only(),
            py::arg("model"), py::arg("n_ctx"), py::arg("n_seq_max"), py::arg("n_batch"), py::arg("n_ubatch"),
            py::arg("n_threads"), py::arg("n_threads_batch"),
            py::arg("type_k"), py::arg("type_v"), py::arg("flash_attn"),
            py::arg("rope"), py::arg("h2o"), py::arg("record"), py::arg("profile"), py::arg("verbose"))
        .def("decode", &context::decode, py::arg("ids").noconvert(), py::arg("rows").noconvert(), py::arg("logits").noconvert(), py::arg("dense_tail"), py::arg("generated"), py::arg("progress"))
        .def("sequence", [](const context & self, llama_seq_id i) { return std::make_shared<context>(self, i); }, py::arg("i"))
        .def("copy_from", &context::copy_from, py::arg("other"))
        .def_static("decode_each", &context::decode_each, py::arg("sequences"), py::arg("tokens").noconvert(), py::arg("logits").noconvert())
        .def("decode_draft", &context::decode_draft, py::arg("tokens").noconvert(), py::arg("logits").noconvert())
        .def("accept_draft", &context::accept_draft, py::arg("token"))
        .def("find_draft",   &context::find_draft,   py::arg("token"), py::arg("n_min"), py::arg("n_max"))
        .def("clear", &context::clear)
        .def("rewind_points", &rewind_points, py::arg("pos"))
        .def("rewind", &context::rewind, py::arg("pos"))
        .def("snapshot", &context::snapshot)
        .def("state_points", &state_points)
        .def("state_rows", &state_rows)
        .def("keep_boundaries", &keep_boundaries)
        .def("restore", &context::restore, py::arg("state"), py::arg("tokens").noconvert(), py::arg("logits").noconvert())
        .def("remove", &context::remove, py::arg("start"))
        .def("get_state", &context::get_state, py::arg("partial"), py::arg("rows") = true, py::arg("end") = py::none())
        .def("set_state", &context::set_state, py::arg("state"), py::arg("partial"), py::arg("rows") = true)
        .def("close", &context::close)
        .def_property_readonly("n_threads",  [](const context & self) { return std::make_pair(llama_n_threads(self.get()), llama_n_threads_batch(self.get())); })
        .def_property_readonly("n_tokens",   &context::n_tokens)
        .def_property_readonly("tokens",     &context::tokens)
        .def_property_readonly("last_logits", &context::last_logits_array)
        .def_property_readonly("min_position", [](const context & self) { return llama_memory_seq_pos_min(llama_get_memory(self.get()), self.seq_id); })
        .def_property_readonly("kv_bytes",   [](const context & self) { return llama_h2o_memory_bytes(self.get()); })
        .def_property_readonly("has_logits", [](const context & self) { return self.last_logits() != nullptr; })
        .def_property_readonly("logits_index", &context::logits_index)
        .def_property_readonly("n_drafted",  &context::n_drafted)
        .def_property_readonly("n_accepted", &context::n_accepted);

    m.def("embedding_ids", [](const context::logits_array & rows) {
        if (rows.ndim() != 2) {
            throw std::invalid_argument("[embedding_ids] expected rows of shape [n, n_embd], got " + shape_of(rows));
        }
        context::token_array ids(rows.shape(0));
        for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
            ids.mutable_at(i) = h2o_embedding_id(rows.data(i), rows.shape(1));
        }
        return ids;
    }, py::arg("rows").noconvert(), "What stands for rows of embeddings among token ids.");
}
