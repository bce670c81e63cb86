// K and V of a sequence that go to the cold store, and come back.

#include "h2o/sequence/sequence.h"

#include <algorithm>

h2o_kv_rows h2o_sequence::rows_of(const h2o_layer & layer, h2o_cold_store::part_t part) const {
    return part == h2o_cold_store::K ? k_rows(layer.il) : v_rows(layer.il);
}

void h2o_sequence::store_chunk() {
    const uint32_t row = layout.row_of(0);

    cold->append([&](size_t layer, h2o_cold_store::part_t part) {
        return rows_of(layers[layer], part).get_bytes(row, row + config.chunk_size);
    });
}

void h2o_sequence::read_moved(h2o_record & record) const {
    const size_t M = config.memory_size();

    for (const auto & layer : layers) {
        auto & r = record.layers[layer.index];

        const size_t n     = config.n_memory(r.n_built*config.chunk_size);
        const size_t first = M - n;

        for (const auto part : { h2o_cold_store::K, h2o_cold_store::V }) {
            const auto   rows   = rows_of(layer, part);
            const size_t n_byte = ggml_row_size(rows.t->type, rows.n_embd);
            const size_t stride = rows.t->nb[1];

            std::vector<uint8_t> found(n*stride);
            std::vector<uint8_t> & bytes = part == h2o_cold_store::K ? r.k : r.v;

            bytes.resize(n*stride);
            for (size_t h = 0; h < layer.n_head_kv; ++h) {
                std::vector<h2o_cold_store::wanted> wanted;
                for (size_t i = 0; i < n; ++i) {
                    wanted.push_back({ r.memory[h*M + first + i], found.data() + i*stride });
                }
                cold->read(layer.index, part, wanted);
                for (size_t i = 0; i < n; ++i) {
                    std::copy_n(found.data() + i*stride + h*n_byte, n_byte, bytes.data() + i*stride + h*n_byte);
                }
            }
        }
    }
}
