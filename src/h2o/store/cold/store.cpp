#include "h2o/store/cold/store.h"

#include "ggml/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

void h2o_cold_store::append(const std::function<std::vector<uint8_t>(size_t layer, h2o_kv_part part)> & rows) {
    const auto chunk = std::make_shared<h2o_cold_chunk>(n_chunks()*chunk_size, chunk_size, row_sizes.size());
    for (size_t layer = 0; layer < row_sizes.size(); ++layer) {
        for (const h2o_kv_part part : { H2O_K, H2O_V }) {
            chunk->store(layer, part, { place->write(rows(layer, part)), {} });
        }
    }
    chunks.push_back(chunk);

    for (const auto & c : chunks) {
        if (codec && !c->is_submitted) { // this chunk, or an earlier one that found the queue full
            codec->submit(c);
        }
    }
}

void h2o_cold_store::truncate(uint32_t n) {
    if (n < chunks.size()) {
        chunks.resize(n);
        kept.clear();
    }
}

void h2o_cold_store::share(const h2o_cold_store & other) {
    chunks = other.chunks;
    kept.clear();
}

void h2o_cold_store::read(size_t layer, h2o_kv_part part, const std::vector<wanted> & rows) const {
    const size_t size = row_sizes[layer][part];

    static thread_local std::vector<uint8_t> buffer; // kept, as most reads are of one row
    for (size_t i = 0, n; i < rows.size(); i += n) {
        const auto &   chunk  = *chunks[rows[i].pos/chunk_size];
        const uint32_t first  = rows[i].pos%chunk_size;
        const auto     stored = chunk.load(layer, part);

        // as many as lie together, here and there
        n = 1;
        while (i + n < rows.size() && first + n < chunk_size && rows[i + n].pos == rows[i].pos + (int32_t) n &&
                rows[i + n].dst == rows[i].dst + n*size) {
            n++;
        }
        if (!stored->block.code) {
            std::copy_n(stored->bytes->get(first*size, n*size, buffer), n*size, rows[i].dst);
            continue;
        }
        try {
            stored->block.decode(first, n, rows[i].dst, [&](uint32_t begin, uint32_t end) {
                return stored->bytes->get(begin, end - begin, buffer);
            });
        } catch (const h2o_codec_error & e) {
            throw std::runtime_error("[h2o] the cold store is damaged: layer " +
                    std::to_string(codec->layers[layer].il) + ", " + (part == H2O_K ? "K" : "V") + " of positions " +
                    std::to_string(rows[i].pos) + " to " + std::to_string(rows[i].pos + n - 1) + " (" + e.what() +
                    "). Reset the sequence and read its text again");
        }
    }
}

void h2o_cold_store::read_range(size_t layer, h2o_kv_part part, uint32_t first, size_t n, uint8_t * dst) const {
    std::vector<wanted> rows;
    for (size_t i = 0; i < n; ++i) {
        rows.push_back({ (int32_t) (first + i), dst + i*row_sizes[layer][part] });
    }
    read(layer, part, rows);
}

void h2o_cold_store::set_positions(std::vector<int32_t> next) {
    if (n_layers_begun < row_sizes.size()) { // rows of an unfinished step may be missing
        kept.clear();
    }
    n_layers_begun = 0;

    positions.clear();
    for (const int32_t pos : next) {
        positions.push_back({ pos, true, 0 });
    }
    keeps_rows = positions.size() <= MAX_KEPT;
    if (keeps_rows) {
        keep_positions();
    }
}

void h2o_cold_store::keep_positions() {
    n_steps++;

    // The kept ones first: the others must not take their slots.
    size_t n_missing = positions.size();
    for (auto & p : positions) {
        if (const auto it = kept.find(p.pos); it != kept.end()) {
            it->second.used = n_steps;
            p.is_missing = false;
            p.slot       = it->second.slot;
            n_missing--;
        }
    }
    for (auto & p : positions) {
        if (!p.is_missing) {
            continue;
        }
        p.slot = kept.size();
        if (kept.size() == MAX_KEPT) {
            const auto oldest = std::min_element(kept.begin(), kept.end(), [](const auto & a, const auto & b) {
                return a.second.used < b.second.used;
            });
            p.slot = oldest->second.slot;
            kept.erase(oldest);
        }
        kept[p.pos] = { p.slot, n_steps };
    }
    if (codec) {
        codec->count_kept(positions.size() - n_missing, n_missing);
    }
    kept_bytes.resize(row_sizes.size());
    for (size_t layer = 0; layer < row_sizes.size(); ++layer) {
        for (const auto part : { H2O_K, H2O_V }) {
            kept_bytes[layer][part].resize(kept.size()*row_sizes[layer][part]);
        }
    }
}

int32_t h2o_cold_store::row_of(int32_t pos) const {
    const auto before = [](const step_position & p, int32_t pos) { return p.pos < pos; };

    return std::lower_bound(positions.begin(), positions.end(), pos, before) - positions.begin();
}

void h2o_cold_store::keep_failure(const std::string & what) {
    const std::lock_guard<std::mutex> lock(mutex);
    failure = what;
}

void h2o_cold_store::fetch(const h2o_layer & layer, const ggml_h2o_attn_source_layout & source, size_t n_offloaded,
        uint8_t * dst, int ith, int nth) {
    if (ith == 0) {
        n_layers_begun = layer.index + 1;
    }
    const size_t n       = positions.size();
    const size_t n_words = (n_offloaded + 31)/32;

    for (uint32_t h = ith; h < layer.n_head_kv; h += nth) {
        uint32_t * own = (uint32_t *) (dst + source.own) + h*n_words;
        std::fill_n(own, n_words, 0);

        auto       memory = layer.memory.begin() + h*layer.n_memory();
        const auto end    = memory + layer.n_memory();
        for (size_t i = 0; i < n; ++i) {
            memory = std::find_if(memory, end, [&](int32_t pos) { return pos >= positions[i].pos; });
            if (memory != end && *memory == positions[i].pos) {
                own[i/32] |= uint32_t(1) << i%32;
            }
        }
    }

    for (const auto part : { H2O_K, H2O_V }) {
        const size_t size = row_sizes[layer.index][part];
        uint8_t *    rows = dst + (part == H2O_K ? source.k : source.v);
        uint8_t *    kept = keeps_rows ? kept_bytes[layer.index][part].data() : nullptr;

        std::vector<wanted> missing;
        for (size_t i = n*ith/nth; i < n*(ith + 1)/nth; ++i) {
            if (positions[i].is_missing) {
                missing.push_back({ positions[i].pos, rows + i*size });
            } else {
                memcpy(rows + i*size, kept + positions[i].slot*size, size);
            }
        }
        const h2o_stopwatch watch;
        read(layer.index, part, missing);
        if (codec && codec->params.mode == LLAMA_H2O_LOSSLESS_STORE && !missing.empty()) {
            codec->count_read(watch.us());
        }
        for (size_t i = n*ith/nth; kept && i < n*(ith + 1)/nth; ++i) {
            if (positions[i].is_missing) {
                memcpy(kept + positions[i].slot*size, rows + i*size, size);
            }
        }
    }

    // row 0 is finite
    if (n == 0 && ith == 0) {
        memset(dst + source.k, 0, row_sizes[layer.index][H2O_K]);
        memset(dst + source.v, 0, row_sizes[layer.index][H2O_V]);
    }
}

void h2o_cold_store::fetch_chosen(size_t layer, const int32_t * chosen, size_t n_chosen,
        const ggml_h2o_attn_source_layout & source, size_t n, uint8_t * dst, int ith, int nth) {
    const int32_t begin = ith*n/nth;
    const int32_t end   = (ith + 1)*n/nth;

    std::vector<bool> is_chosen(end - begin);
    for (size_t i = 0; i < n_chosen; ++i) {
        if (chosen[i] >= begin && chosen[i] < end) {
            is_chosen[chosen[i] - begin] = true;
        }
    }
    if (begin == 0 && end > 0) {
        is_chosen[0] = true; // row 0 of a source is finite
    }
    for (const auto part : { H2O_K, H2O_V }) {
        uint8_t * rows = dst + (part == H2O_K ? source.k : source.v);

        std::vector<wanted> wanted;
        for (int32_t pos = begin; pos < end; ++pos) {
            if (is_chosen[pos - begin]) {
                wanted.push_back({ pos, rows + pos*row_sizes[layer][part] });
            }
        }
        read(layer, part, wanted);
    }
}

void h2o_cold_store::check() {
    if (!failure.empty()) {
        kept.clear();
        throw std::runtime_error(std::exchange(failure, std::string()));
    }
}

uint64_t h2o_cold_store::n_bytes() const {
    uint64_t res = 0;
    for (const auto & chunk : chunks) {
        res += chunk->n_bytes;
    }
    return res;
}
