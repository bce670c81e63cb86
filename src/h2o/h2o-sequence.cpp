#include "h2o-sequence.h"

#include "h2o-select.h"
#include "h2o-threads.h"

#include "ggml-backend.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

h2o_sequence::h2o_sequence(const h2o_config & config, std::unique_ptr<h2o_layout> layout_, const std::vector<layer_dims> & dims)
    : config(config), layout(std::move(layout_)), buffers(2*dims.size()) {
    for (const auto & d : dims) {
        const std::string suffix = "_l" + std::to_string(d.il);

        h2o_layer layer;
        layer.index     = layers.size();
        layer.il        = d.il;
        layer.n_head    = d.n_head;
        layer.n_head_kv = d.n_head_kv;
        layer.scorer    = config.scorer;
        layer.scores    = buffers.add(d.device, "h2o_scores" + suffix, config.score_type, layout->n_rows(), d.n_head_kv);
        layer.rows      = buffers.add(d.device, "h2o_rows"   + suffix, GGML_TYPE_I32, config.memory_size() + config.chunk_size, d.n_head_kv);

        layers.push_back(layer);
    }
    buffers.allocate();
    if (config.has_tiles()) {
        tiles = std::make_unique<h2o_tiles>(config);
    }
    clear();
}

void h2o_sequence::clear() {
    n_tok    = 0;
    n_scored = 0;
    n_end    = 0;

    undo.reset();
    records.clear();
    truncate_text();

    const size_t M = config.memory_size();

    for (auto & layer : layers) {
        ggml_backend_tensor_memset(layer.scores, 0, 0, ggml_nbytes(layer.scores));

        h2o_host_data data(layer.rows);
        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            int32_t * rows = data.as<int32_t>() + h*layer.rows->ne[0];
            std::fill(rows, rows + M, -1);
            write_chunk_rows(rows, 0);
        }
        data.store();

        layer.n_built = 0;
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
    h2o_scores scores(layer);

    std::vector<float> res((size_t) layer.n_head_kv*n_tok);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t row = 0; row < layout->n_rows(); ++row) {
            const uint32_t pos = layout->position_of(layer.index, h, row);
            if (pos < n_tok) {
                res[(size_t) h*n_tok + pos] = scores.get(h, row);
            }
        }
    }
    return res;
}

std::vector<int32_t> h2o_sequence::positions(const h2o_layer & layer, const int32_t * rows, size_t stride) const {
    const size_t M = config.memory_size();

    std::vector<int32_t> res(layer.n_head_kv*M, -1);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        int32_t * dst = res.data() + h*M;
        for (const int32_t * row = rows + h*stride; row < rows + h*stride + M; ++row) {
            if (*row >= 0) {
                *dst++ = layout->position_of(layer.index, h, *row);
            }
        }
    }
    return res;
}

std::vector<int32_t> h2o_sequence::memory(const h2o_layer & layer) const {
    h2o_host_data data(layer.rows);

    return positions(layer, data.as<int32_t>(), layer.rows->ne[0]);
}

std::vector<int32_t> h2o_sequence::history(const h2o_layer & layer, uint32_t chunk) const {
    const auto it = records.find(chunk);

    return it == records.end() ? std::vector<int32_t>() :
        positions(layer, it->second.layers[layer.index].rows.data(), config.memory_size());
}

void h2o_sequence::add_chunk_scores(h2o_layer & layer, uint32_t start, uint32_t n, const float * colsum) {
    h2o_scores scores(layer);

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t i = 0; i < n; ++i) {
            scores.add(h, layout->row_of(start + i), colsum[(size_t) h*n + i]);
        }
    }
    scores.store();

    n_end = std::max(n_end, start + n);
}

void h2o_sequence::add_memory_scores(h2o_layer & layer, const float * colsum) {
    const size_t M = config.memory_size();

    h2o_host_data data  (layer.rows);
    h2o_scores    scores(layer);

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const int32_t * rows  = data.as<int32_t>() + h*layer.rows->ne[0];
        const int32_t * first = std::find_if(rows, rows + M, [](int32_t row) { return row >= 0; });
        for (const int32_t * row = first; row < rows + M; ++row) {
            scores.add(h, *row, colsum[h*M + (row - first)]);
        }
    }
    scores.store();
}

void h2o_sequence::set_scores_of(h2o_scores & scores, const h2o_layer & layer, uint32_t p0, uint32_t p1, const float * values) const {
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        for (uint32_t p = p0; p < p1; ++p) {
            scores.set(h, layout->row_of(p), values ? values[(size_t) h*(p1 - p0) + p - p0] : 0.0f);
        }
    }
}

void h2o_sequence::score_keys(h2o_layer & layer, uint32_t chunk_start, uint32_t chunk_end) {
    const uint32_t n = chunk_end - chunk_start;

    // a chunk's rows stand together
    std::vector<float> score((size_t) layer.n_head_kv*n);
    layer.scorer->score_keys(read_keys(layer.il, layout->row_of(chunk_start), n), score.data());

    h2o_scores scores(layer);
    set_scores_of(scores, layer, chunk_start, chunk_end, score.data());
    scores.store();
}

void h2o_sequence::write_chunk_rows(int32_t * rows, uint32_t chunk_start) const {
    for (uint32_t i = 0; i < config.chunk_size; ++i) {
        // rows beyond the cache are there in no graph
        rows[config.memory_size() + i] = layout->row_of(chunk_start + i);
    }
}

void h2o_sequence::write_rows(const h2o_layer & layer, uint32_t head, int32_t * rows, const std::vector<int32_t> & memory, uint32_t chunk_start) const {
    const size_t M = config.memory_size();

    const std::vector<int32_t> before(rows, rows + M);

    std::fill(rows, rows + M - memory.size(), -1);

    auto old = std::find_if(before.begin(), before.end(), [](int32_t row) { return row >= 0; });
    for (size_t i = 0; i < memory.size(); ++i) {
        const auto position = [&] { return (int32_t) layout->position_of(layer.index, head, *old); };
        while (old != before.end() && position() < memory[i]) {
            ++old;
        }
        rows[M - memory.size() + i] = old != before.end() && position() == memory[i] ? *old : layout->row_of(memory[i]);
    }
    write_chunk_rows(rows, chunk_start);
}

void h2o_sequence::build_memory_set(h2o_layer & layer, uint32_t chunk_end) {
    const size_t   M           = config.memory_size();
    const uint32_t chunk_start = chunk_start_of(chunk_end);

    if (!layer.scorer->uses_attention()) {
        score_keys(layer, chunk_start, chunk_end);
    }

    h2o_scores    scores(layer);
    h2o_host_data data  (layer.rows);

    std::vector<int32_t> pos;
    std::vector<float>   score;
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        int32_t * rows = data.as<int32_t>() + h*layer.rows->ne[0];

        pos.clear();
        score.clear();
        for (const int32_t * row = rows; row < rows + M; ++row) {
            if (*row >= 0 && layout->position_of(layer.index, h, *row) < chunk_start) {
                pos.push_back(layout->position_of(layer.index, h, *row));
                score.push_back(scores.get(h, *row));
            }
        }
        for (uint32_t p = chunk_start; p < chunk_end; ++p) {
            pos.push_back(p);
            score.push_back(scores.get(h, layout->row_of(p)));
        }

        write_rows(layer, h, rows, h2o_select_memory(config, *layer.scorer, chunk_end, pos, score), chunk_start + config.chunk_size);
    }
    data.store();

    layer.n_built++;
}

void h2o_sequence::set_memory(h2o_layer & layer, const int32_t * memory) {
    const size_t M = config.memory_size();

    begin_chunk(n_tok);

    h2o_host_data data(layer.rows);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const int32_t * row = memory + h*M;
        write_rows(layer, h, data.as<int32_t>() + h*layer.rows->ne[0], std::vector<int32_t>(row, row + config.n_memory(n_tok)), n_tok);
    }
    data.store();

    records.at(n_tok/config.chunk_size - 1).layers[layer.index] = record_layer(layer, n_tok);
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
    h2o_for_each(cpu, missing.size(), [&](size_t i) { build_memory_set(*missing[i], pos); });

    h2o_record r = record(pos);
    r.n_tokens = pos;
    r.n_scored = pos;
    records[pos/config.chunk_size - 1] = std::move(r);

    return true;
}

bool h2o_sequence::uses_attention() const {
    return std::any_of(layers.begin(), layers.end(), [](const h2o_layer & layer) { return layer.scorer->uses_attention(); });
}

void h2o_sequence::begin_call(uint32_t n_tokens, bool all_scores) {
    n_end = n_tok + n_tokens;
    undo  = std::make_unique<h2o_record>(record(all_scores && uses_attention() ? 0 : open_start()));
}

void h2o_sequence::end_call(uint32_t n_tokens, bool scored) {
    n_tok += n_tokens;
    n_end  = n_tok;
    if (scored && uses_attention()) {
        n_scored = n_tok;
    }

    undo.reset();
    if (!keep_records && !records.empty()) {
        records.erase(records.begin(), std::prev(records.end()));
    }
    if (!keep_records && tiles) {
        tiles->forget(open_start());
    }
}

void h2o_sequence::rollback() {
    if (undo) {
        restore(*undo);
        undo.reset();
    }
    truncate_text();
}

void h2o_sequence::truncate_text() {
    if (tiles) {
        tiles->truncate(n_tok);
    }
}

uint32_t h2o_sequence::rewind_limit() const {
    return std::max(n_memory_sets()*config.chunk_size, n_scored);
}

bool h2o_sequence::rewind(uint32_t pos) {
    if (pos >= n_tok) {
        return true;
    }

    if (pos >= rewind_limit()) {
        for (auto & layer : layers) {
            h2o_scores scores(layer);
            set_scores_of(scores, layer, pos, n_end, nullptr);
            scores.store();
        }
        n_tok = pos;
        n_end = pos;
        truncate_text();
        return true;
    }

    const auto it = pos % config.chunk_size == 0 && pos > 0 ? records.find(pos/config.chunk_size - 1) : records.end();
    if (it == records.end()) {
        return false;
    }
    restore(it->second);
    return true;
}
