#include "h2o/store/cold/offloaded-rows.h"

#include "ggml/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <utility>

void h2o_offloaded_rows::set(std::vector<int32_t> step_positions) {
    // rows of an unfinished step may be missing
    if (n_layers_begun < kept_bytes.size() || version != store.version()) {
        forget_kept();
    }
    version   = store.version();
    positions = std::move(step_positions);

    n_layers_begun = 0;

    keep_positions();
}

void h2o_offloaded_rows::keep_positions() {
    slots.clear();
    present.clear();
    missing.clear();
    if (positions.size() > MAX_KEPT) {
        missing.resize(positions.size());
        std::iota(missing.begin(), missing.end(), 0);
        return;
    }
    slots.resize(positions.size());

    // The kept ones first: the others must not take their slots.
    for (size_t i = 0; i < positions.size(); ++i) {
        if (const auto it = kept.find(positions[i]); it != kept.end()) {
            it->second.used = ++n_used;
            slots[i] = it->second.slot;
            present.push_back(i);
        } else {
            missing.push_back(i);
        }
    }
    for (const size_t i : missing) {
        slots[i] = kept.size();
        if (kept.size() == MAX_KEPT) {
            const auto oldest = std::min_element(kept.begin(), kept.end(), [](const auto & a, const auto & b) {
                return a.second.used < b.second.used;
            });
            slots[i] = oldest->second.slot;
            kept.erase(oldest);
        }
        kept[positions[i]] = { slots[i], ++n_used };
    }
    if (store.codec) {
        store.codec->count_kept(present.size(), missing.size());
    }
    for (size_t layer = 0; layer < kept_bytes.size(); ++layer) {
        for (const auto part : { H2O_K, H2O_V }) {
            kept_bytes[layer][part].resize(kept.size()*store.row_sizes[layer][part]);
        }
    }
}

void h2o_offloaded_rows::forget_kept() {
    kept.clear();
}

int32_t h2o_offloaded_rows::row_of(int32_t pos) const {
    return std::lower_bound(positions.begin(), positions.end(), pos) - positions.begin();
}

uint8_t * h2o_offloaded_rows::kept_row(size_t layer, h2o_kv_part part, size_t i) {
    return kept_bytes[layer][part].data() + slots[i]*store.row_sizes[layer][part];
}

void h2o_offloaded_rows::read_missing(size_t layer, h2o_kv_part part, size_t begin, size_t end, uint8_t * dst) {
    const size_t size = store.row_sizes[layer][part];

    std::vector<h2o_cold_store::wanted> wanted;
    for (size_t k = begin; k < end; ++k) {
        wanted.push_back({ positions[missing[k]], dst + missing[k]*size });
    }
    store.read(layer, part, wanted);
    for (size_t k = begin; !slots.empty() && k < end; ++k) {
        memcpy(kept_row(layer, part, missing[k]), dst + missing[k]*size, size);
    }
}

void h2o_offloaded_rows::copy_present(size_t layer, h2o_kv_part part, size_t begin, size_t end, uint8_t * dst) {
    const size_t size = store.row_sizes[layer][part];

    for (size_t k = begin; k < end; ++k) {
        memcpy(dst + present[k]*size, kept_row(layer, part, present[k]), size);
    }
}

template <typename F>
void h2o_offloaded_rows::keep_failure(const F & f) {
    try {
        f();
    } catch (const std::exception & e) {
        const std::lock_guard<std::mutex> lock(mutex);
        failure = e.what();
    }
}

void h2o_offloaded_rows::fetch_chosen(size_t layer, const int32_t * chosen, size_t n_chosen,
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
    keep_failure([&]() {
        for (const auto part : { H2O_K, H2O_V }) {
            uint8_t * rows = dst + (part == H2O_K ? source.k : source.v);

            std::vector<h2o_cold_store::wanted> wanted;
            for (int32_t pos = begin; pos < end; ++pos) {
                if (is_chosen[pos - begin]) {
                    wanted.push_back({ pos, rows + pos*store.row_sizes[layer][part] });
                }
            }
            store.read(layer, part, wanted);
        }
    });
}

void h2o_offloaded_rows::fetch_range(size_t layer, h2o_kv_part part, uint32_t first, size_t n, uint8_t * dst, int ith,
        int nth) {
    const size_t begin = ith*n/nth;
    const size_t end   = (ith + 1)*n/nth;

    keep_failure([&]() {
        store.read_range(layer, part, first + begin, end - begin, dst + begin*store.row_sizes[layer][part]);
    });
}

void h2o_offloaded_rows::fetch(const h2o_layer & layer, const ggml_h2o_attn_source_layout & source, size_t n_offloaded,
        uint8_t * dst,
        int ith, int nth) {
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
            memory = std::find_if(memory, end, [&](int32_t pos) { return pos >= positions[i]; });
            if (memory != end && *memory == positions[i]) {
                own[i/32] |= uint32_t(1) << i%32;
            }
        }
    }

    // K and then V, divided so that each thread reads as many rows as the others, and copies as many
    const auto divided = [&](size_t n_rows, h2o_kv_part part, const auto & f) {
        const size_t first = 2*n_rows*ith/nth;
        const size_t last  = 2*n_rows*(ith + 1)/nth;
        const size_t start = part*n_rows;
        f(std::clamp(first, start, start + n_rows) - start, std::clamp(last, start, start + n_rows) - start);
    };
    keep_failure([&]() {
        for (const auto part : { H2O_K, H2O_V }) {
            uint8_t * rows = dst + (part == H2O_K ? source.k : source.v);
            divided(missing.size(), part, [&](size_t begin,
                    size_t end) { read_missing(layer.index, part, begin, end, rows); });
            divided(present.size(), part, [&](size_t begin,
                    size_t end) { copy_present(layer.index, part, begin, end, rows); });
        }
    });

    // row 0 is finite
    if (n == 0 && ith == 0) {
        memset(dst + source.k, 0, store.row_sizes[layer.index][H2O_K]);
        memset(dst + source.v, 0, store.row_sizes[layer.index][H2O_V]);
    }
}

void h2o_offloaded_rows::check() {
    if (!failure.empty()) {
        forget_kept();
        throw std::runtime_error(std::exchange(failure, std::string()));
    }
}
