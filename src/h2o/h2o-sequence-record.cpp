// Records of a sequence: what to go back to.

#include "h2o-sequence.h"

#include "ggml-backend.h"

#include <algorithm>
#include <utility>

h2o_record::layer h2o_sequence::record_layer(const h2o_layer & layer, uint32_t first) const {
    h2o_host_data data  (layer.rows);
    h2o_scores    scores(layer);

    h2o_record::layer res;
    res.n_built = layer.n_built;
    for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
        const int32_t * rows = data.as<int32_t>() + h*layer.rows->ne[0];
        for (const int32_t * row = rows; row < rows + config.memory_size(); ++row) {
            res.rows.push_back(*row);
            res.memory_scores.push_back(*row >= 0 ? scores.get(h, *row) : 0.0f);
        }
        for (uint32_t p = first; p < n_tok; ++p) {
            res.scores.push_back(scores.get(h, layout->row_of(p)));
        }
    }
    return res;
}

h2o_record h2o_sequence::record(uint32_t first) const {
    h2o_record res = { n_tok, n_scored, first, {} };
    for (const auto & layer : layers) {
        res.layers.push_back(record_layer(layer, first));
    }
    return res;
}

void h2o_sequence::set_chunk_records(std::map<uint32_t, h2o_record> chunk_records) {
    records = std::move(chunk_records);
    forget_records();
}

void h2o_sequence::restore(const h2o_record & record) {
    const size_t M = config.memory_size();

    for (auto & layer : layers) {
        const auto & r = record.layers[layer.index];

        h2o_host_data data  (layer.rows);
        h2o_scores    scores(layer);

        set_scores_of(scores, layer, record.first, record.n_tokens, r.scores.data());
        set_scores_of(scores, layer, record.n_tokens, std::max(n_end, record.n_tokens), nullptr);

        for (uint32_t h = 0; h < layer.n_head_kv; ++h) {
            int32_t * rows = data.as<int32_t>() + h*layer.rows->ne[0];
            for (size_t i = 0; i < M; ++i) {
                rows[i] = r.rows[h*M + i];
                if (rows[i] >= 0) {
                    scores.set(h, rows[i], r.memory_scores[h*M + i]);
                }
            }
            write_chunk_rows(rows, r.n_built*config.chunk_size);
        }
        scores.store();
        data.store();

        layer.n_built = r.n_built;
    }

    n_tok    = record.n_tokens;
    n_scored = record.n_scored;
    n_end    = n_tok;

    records.erase(records.lower_bound(n_memory_sets()), records.end());
    truncate_text();
}
