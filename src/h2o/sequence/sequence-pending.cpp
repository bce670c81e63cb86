// Scores of generated tokens.
//
// A token that was generated may be taken back, as a wrong guess is, and what was added to a score cannot be subtracted exactly.
// So what the generated tokens of the open chunk give to the scores of the layer's rows is kept apart until the chunk is closed:
//
//   scores                                   of tokens before n_scored
//   row MAX_PENDING of a head in `pending`   of [n_scored, n_folded), added up
//   row p % MAX_PENDING                      of the token p in [n_folded, n_generated), written by the graph of its step
//
// Sums are added one token after the other, whenever that is. So nothing depends on it but what can be taken back.

#include "h2o/sequence/sequence.h"

#include "ggml-backend.h"

#include <algorithm>
#include <string>
#include <vector>

std::vector<float> h2o_sequence::pending_sums(const h2o_layer & layer, uint32_t end) const {
    if (!layer.pending || end <= n_scored) {
        return {};
    }
    const size_t   M     = config.memory_size();
    const uint32_t start = open_start();
    const size_t   first = M - config.n_memory(start); // of the columns in use
    const size_t   n     = M + end - start;

    h2o_host_data data(layer.pending);

    const auto row = [&](uint32_t h, uint32_t i) { return data.as<float>() + (h*(config.MAX_PENDING + 1) + i)*layer.pending->ne[0]; };

    std::vector<float> res(layer.n_head_kv*n);
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        float * dst = res.data() + h*n;

        if (n_folded > n_scored) {
            std::copy_n(row(h, config.MAX_PENDING), n, dst);
        }
        for (uint32_t p = n_folded; p < end; ++p) {
            const float * src = row(h, p%config.MAX_PENDING);
            for (size_t i = first; i <= M + p - start; ++i) {
                dst[i] += src[i];
            }
        }
    }
    return res;
}

void h2o_sequence::set_folded(const h2o_layer & layer, const std::vector<float> & sums) const {
    const size_t n    = sums.size()/layer.n_head_kv;
    const size_t size = layer.pending->nb[1];

    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const size_t offset = (h*(config.MAX_PENDING + 1) + config.MAX_PENDING)*size;

        ggml_backend_tensor_memset(layer.pending, 0, offset, size);
        if (n > 0) {
            ggml_backend_tensor_set(layer.pending, sums.data() + h*n, offset, n*sizeof(float));
        }
    }
}

void h2o_sequence::add_pending(const h2o_layer & layer, const std::vector<float> & sums) const {
    const size_t   M     = config.memory_size();
    const size_t   n     = sums.size()/layer.n_head_kv;
    const uint32_t start = open_start();

    h2o_scores scores(layer);
    for (uint32_t h = 0; h < layer.n_head_kv && n > 0; ++h) {
        for (size_t i = 0; i < M; ++i) {
            if (const int32_t pos = layer.memory[h*M + i]; pos >= 0) {
                scores.at(h, layout.memory_row(i, pos)) += sums[h*n + i];
            }
        }
        for (size_t i = M; i < n; ++i) {
            scores.at(h, layout.row_of(start + i - M)) += sums[h*n + i];
        }
    }
    scores.store();
}

void h2o_sequence::begin_generated(uint32_t pos, uint32_t n) {
    if (!has_pending()) {
        return;
    }
    const uint32_t end = pos + n;

    if (end - n_folded > config.MAX_PENDING) {
        const uint32_t end_folded = std::min(pos, std::max(end - config.MAX_PENDING, n_folded + config.MAX_PENDING/2));
        for (const auto & layer : layers) {
            if (layer.pending) {
                set_folded(layer, pending_sums(layer, end_folded));
            }
        }
        n_folded = end_folded;
    }
    n_generated = end;
}

void h2o_sequence::settle() {
    if (n_generated == n_scored) {
        return;
    }
    for (const auto & layer : layers) {
        if (layer.pending) {
            add_pending(layer, pending_sums(layer, n_generated));
        }
    }
    n_scored = n_generated;
    n_folded = n_generated;
}

// its n_tokens and n_scored are set already, its memory sets and scores restored
void h2o_sequence::restore_pending(const h2o_record & record) {
    for (const auto & layer : layers) {
        const auto & sums = record.layers[layer.index].pending;
        if (layer.pending) {
            set_folded(layer, sums);
        } else if (!sums.empty()) { // of a context with another `decode`
            add_pending(layer, sums);
            n_scored = n_tok;
        }
    }
    n_folded    = has_pending() ? n_tok : n_scored;
    n_generated = n_folded;
}
