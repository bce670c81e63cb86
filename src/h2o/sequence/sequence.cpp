#include "h2o/sequence/sequence.h"

#include "h2o/select/select.h"
#include "h2o/store/threads.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

h2o_sequence::h2o_sequence(const h2o_config & config, uint32_t kv_size, const std::vector<layer_dims> & dims)
    : config(config), layout(config, kv_size), buffers(3*dims.size()) {
    for (const auto & d : dims) {
        const std::string suffix = "_l" + std::to_string(d.il);

        h2o_layer layer;
        layer.index     = layers.size();
        layer.il        = d.il;
        layer.n_head    = d.n_head;
        layer.n_head_kv = d.n_head_kv;
        layer.device    = d.device;
        layer.scores    = buffers.add(d.device, "h2o_scores" + suffix, GGML_TYPE_F32, layout.n_rows(), d.n_head_kv);
        layer.rows      = buffers.add(d.device, "h2o_rows"   + suffix, GGML_TYPE_I32, config.memory_size() + config.chunk_size, d.n_head_kv);
        if (has_pending()) {
            layer.pending = buffers.add(d.device, "h2o_pending" + suffix, GGML_TYPE_F32, config.memory_size() + config.chunk_size,
                    (config.MAX_PENDING + 1)*d.n_head_kv);
        }
        layers.push_back(layer);
    }
    buffers.allocate();
    if (config.has_tiles()) {
        tiles = std::make_unique<h2o_tiles>(config);
    }
    clear();
}

void h2o_sequence::clear() {
    n_tok       = 0;
    n_scored    = 0;
    n_folded    = 0;
    n_generated = 0;
    n_end       = 0;

    undo.reset();
    records.clear();
    truncate_text();
    if (cold) {
        cold->truncate(0);
    }

    for (auto & layer : layers) {
        ggml_backend_tensor_memset(layer.scores, 0, 0, ggml_nbytes(layer.scores));

        layer.memory.assign(layer.n_head_kv*config.memory_size(), -1);
        layer.n_built = 0;
        write_rows(layer, 0);
    }
}

uint32_t h2o_sequence::n_memory_sets() const {
    uint32_t res = 0;
    for (const auto & layer : layers) {
        res = std::max(res, layer.n_built);
    }
    return res;
}

h2o_layer * h2o_sequence::layer(int32_t il) {
    for (auto & layer : layers) {
        if (layer.il == il) {
            return &layer;
        }
    }
    return nullptr;
}

std::vector<float> h2o_sequence::scores(const h2o_layer & layer) const {
    const size_t M = config.memory_size();

    h2o_scores scores(layer);

    const auto   pending   = pending_sums(layer, n_generated);
    const size_t n_pending = pending.size()/layer.n_head_kv;

    std::vector<float> res((size_t) layer.n_head_kv*n_tok, NAN);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        float * dst = res.data() + (size_t) h*n_tok;

        for (uint32_t pos = layout.is_compact ? open_start() : 0; pos < n_tok; ++pos) {
            const size_t i = M + pos - open_start();
            dst[pos] = scores.at(h, layout.row_of(pos)) + (pos >= open_start() && i < n_pending ? pending[h*n_pending + i] : 0.0f);
        }
        for (size_t i = 0; i < M; ++i) {
            if (const int32_t pos = layer.memory[h*M + i]; pos >= 0) {
                dst[pos] = scores.at(h, layout.memory_row(i, pos)) + (n_pending > 0 ? pending[h*n_pending + i] : 0.0f);
            }
        }
    }
    if (config.scorer->forgets()) {
        const float scale = (1.0f - config.ema_alpha)/(layer.n_head/layer.n_head_kv*config.chunk_size);
        for (float & score : res) {
            score *= scale;
        }
    }
    return res;
}

// padding from the front of every M entries to their end
static std::vector<int32_t> pad_at_end(std::vector<int32_t> memory, size_t M) {
    for (auto head = memory.begin(); head != memory.end(); head += M) {
        std::rotate(head, std::find_if(head, head + M, [](int32_t pos) { return pos >= 0; }), head + M);
    }
    return memory;
}

std::vector<int32_t> h2o_sequence::memory(const h2o_layer & layer) const {
    return pad_at_end(layer.memory, config.memory_size());
}

std::vector<int32_t> h2o_sequence::history(const h2o_layer & layer, uint32_t chunk) const {
    const auto it = records.find(chunk);

    return it == records.end() ? std::vector<int32_t>() : pad_at_end(it->second.layers[layer.index].memory, config.memory_size());
}

void h2o_sequence::add_chunk_scores(h2o_layer & layer, uint32_t start, uint32_t n, const float * colsum) {
    h2o_scores scores(layer);

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t i = 0; i < n; ++i) {
            scores.at(h, layout.row_of(start + i)) += colsum[(size_t) h*n + i];
        }
    }
    scores.store();

    n_end = std::max(n_end, start + n);
}

void h2o_sequence::add_memory_scores(h2o_layer & layer, const float * colsum) {
    const size_t M = config.memory_size();

    h2o_scores scores(layer);

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const float * sum = colsum + h*M;
        for (size_t i = 0; i < M; ++i) {
            if (const int32_t pos = layer.memory[h*M + i]; pos >= 0) {
                scores.at(h, layout.memory_row(i, pos)) += *sum++;
            }
        }
    }
    scores.store();
}

void h2o_sequence::set_scores_of(h2o_scores & scores, const h2o_layer & layer, uint32_t p0, uint32_t p1, const float * values) const {
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t p = p0; p < p1; ++p) {
            scores.at(h, layout.row_of(p)) = values ? values[(size_t) h*(p1 - p0) + p - p0] : 0.0f;
        }
    }
}

void h2o_sequence::build_memory_set(h2o_layer & layer, uint32_t chunk_end) {
    const size_t   M           = config.memory_size();
    const uint32_t chunk_start = chunk_start_of(chunk_end);

    h2o_scores scores(layer);

    std::vector<std::vector<int32_t>> pos  (layer.n_head_kv);
    std::vector<std::vector<float>>   score(layer.n_head_kv);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (size_t i = 0; i < M; ++i) {
            const int32_t p = layer.memory[h*M + i];
            if (p >= 0 && p < (int32_t) chunk_start) {
                pos  [h].push_back(p);
                score[h].push_back(scores.at(h, layout.memory_row(i, p)));
            }
        }
        for (uint32_t p = chunk_start; p < chunk_end; ++p) {
            pos  [h].push_back(p);
            score[h].push_back(scores.at(h, layout.row_of(p)));
        }
    }
    if (config.shared_heads) { // they have the same positions
        for (size_t i = 0; i < score[0].size(); ++i) {
            float sum = 0.0f;
            for (const auto & s : score) {
                sum += s[i];
            }
            for (auto & s : score) {
                s[i] = sum/layer.n_head_kv;
            }
        }
    }

    std::vector<int32_t> memory(layer.memory.size(), -1);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const auto selected = h2o_select_memory(config, chunk_end, pos[h], score[h]);
        std::copy(selected.begin(), selected.end(), memory.begin() + (h + 1)*M - selected.size());
    }

    set_memory_set(layer, std::move(memory), chunk_start + config.chunk_size);
    if (config.scorer->forgets()) {
        forget_scores(layer);
    }
    layer.n_built++;
}

// of what is kept; the rest has the score that it had when it left
void h2o_sequence::forget_scores(const h2o_layer & layer) const {
    const size_t M = config.memory_size();

    h2o_scores scores(layer);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (size_t i = 0; i < M; ++i) {
            if (const int32_t pos = layer.memory[h*M + i]; pos >= 0) {
                const uint32_t row = layout.memory_row(i, pos);
                scores.at(h, row) *= config.ema_alpha;
            }
        }
    }
    scores.store();
}

void h2o_sequence::set_memory(h2o_layer & layer, const int32_t * memory) {
    const size_t   M = config.memory_size();
    const uint32_t n = config.n_memory(n_tok);

    begin_chunk(n_tok);

    std::vector<int32_t> padded(layer.memory.size(), -1);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        std::copy_n(memory + h*M, n, padded.begin() + (h + 1)*M - n);
    }
    set_memory_set(layer, std::move(padded), n_tok);

    const auto record = records.find(n_tok/config.chunk_size - 1); // none of a set that was built by hand
    if (record != records.end()) {
        record->second.layers[layer.index] = record_layer(layer, n_tok, n_tok, false);
    }
}

bool h2o_sequence::begin_chunk(uint32_t pos) {
    if (pos == 0 || pos % config.chunk_size != 0) {
        return false;
    }

    std::vector<h2o_layer *> missing;
    for (auto & layer : layers) {
        if (layer.n_built < pos/config.chunk_size) {
            missing.push_back(&layer);
        }
    }
    if (missing.empty()) {
        return false;
    }
    settle();
    if (cold) {
        store_chunk();
    }
    h2o_for_each(backends.empty() ? nullptr : backends.back(), missing.size(), [&](size_t i) { build_memory_set(*missing[i], pos); });
    move_on_devices(missing);

    h2o_record r = record(pos);
    r.n_tokens = pos;
    r.n_scored = pos;
    records[pos/config.chunk_size - 1] = std::move(r);

    return true;
}

void h2o_sequence::begin_call(uint32_t n_tokens, bool all_scores) {
    n_end = n_tok + n_tokens;

    // rows move when a chunk is closed
    const bool moves = layout.is_compact && chunk_start_of(n_end) > open_start();

    undo = std::make_unique<h2o_record>(record(all_scores && !layout.is_compact ? 0 : open_start(), moves));
}

void h2o_sequence::end_call(uint32_t n_tokens, bool scored) {
    n_tok += n_tokens;
    n_end  = n_tok;
    if (scored) {
        n_scored    = n_tok;
        n_folded    = n_tok;
        n_generated = n_tok;
    }

    undo.reset();
    forget_records();
    if (!keep_records && tiles) {
        tiles->forget(open_start());
    }
}

// all but the last, unless they are kept
void h2o_sequence::forget_records() {
    if (!keep_records && !records.empty()) {
        records.erase(records.begin(), std::prev(records.end()));
    }
}

void h2o_sequence::rollback() {
    if (undo) {
        restore(*undo);
        undo.reset();
    }
    n_generated = std::min(n_generated, n_tok);
    truncate_text();
}

void h2o_sequence::truncate_text() {
    if (tiles) {
        tiles->truncate(n_tok);
    }
}
