#include "h2o/store/cold/far-rows.h"

#include "ggml/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <utility>

void h2o_far_rows::set(std::vector<int32_t> step_positions) {
    // rows of a step that came to no end may be missing
    if (n_layers_begun < kept_bytes.size() || version != store.version()) {
        forget_kept();
    }
    version   = store.version();
    positions = std::move(step_positions);

    n_layers_begun = 0;

    keep_positions();
}

void h2o_far_rows::keep_positions() {
    slots.clear();
    present.clear();
    missing.clear();
    if (positions.size() > MAX_KEPT) {
        missing.resize(positions.size());
        std::iota(missing.begin(), missing.end(), 0);
        return;
    }
    slots.resize(positions.size());

    // first those that are here, so that the others do not take their places
    for (size_t i = 0; i < positions.size(); ++i) {
        const auto it = kept_by_position.find(positions[i]);
        if (it != kept_by_position.end()) {
            slots[i] = it->second->slot;
            kept.splice(kept.begin(), kept, it->second);
            present.push_back(i);
        } else {
            missing.push_back(i);
        }
    }
    for (const size_t i : missing) {
        size_t slot = kept.size();
        if (slot == MAX_KEPT) {
            slot = kept.back().slot;
            kept_by_position.erase(kept.back().pos);
            kept.pop_back();
        }
        kept.push_front({ positions[i], slot });
        kept_by_position[positions[i]] = kept.begin();
        slots[i] = slot;
    }
    if (store.codec) {
        store.codec->count_kept(present.size(), missing.size());
    }
    for (size_t layer = 0; layer < kept_bytes.size(); ++layer) {
        for (const auto part : { h2o_cold_store::K, h2o_cold_store::V }) {
            kept_bytes[layer][part].resize(kept.size()*store.row_sizes[layer][part]);
        }
    }
}

void h2o_far_rows::forget_kept() {
    kept.clear();
    kept_by_position.clear();
}

int32_t h2o_far_rows::row_of(int32_t pos) const {
    return std::lower_bound(positions.begin(), positions.end(), pos) - positions.begin();
}

uint8_t * h2o_far_rows::kept_row(size_t layer, h2o_cold_store::part_t part, size_t i) {
    return kept_bytes[layer][part].data() + slots[i]*store.row_sizes[layer][part];
}

void h2o_far_rows::read_missing(size_t layer, h2o_cold_store::part_t part, size_t begin, size_t end, uint8_t * dst) {
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

void h2o_far_rows::copy_present(size_t layer, h2o_cold_store::part_t part, size_t begin, size_t end, uint8_t * dst) {
    const size_t size = store.row_sizes[layer][part];

    for (size_t k = begin; k < end; ++k) {
        memcpy(dst + present[k]*size, kept_row(layer, part, present[k]), size);
    }
}

template <typename F>
void h2o_far_rows::keep_failure(const F & f) {
    try {
        f();
    } catch (const std::exception & e) {
        const std::lock_guard<std::mutex> lock(mutex);
        failure = e.what();
    }
}

void h2o_far_rows::fetch_chosen(size_t layer, const int32_t * chosen, size_t n_chosen, const ggml_h2o_attn_source_layout & at, size_t n,
        uint8_t * dst, int ith, int nth) {
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
        for (const auto part : { h2o_cold_store::K, h2o_cold_store::V }) {
            uint8_t * to = dst + (part == h2o_cold_store::K ? at.k : at.v);

            std::vector<h2o_cold_store::wanted> wanted;
            for (int32_t pos = begin; pos < end; ++pos) {
                if (is_chosen[pos - begin]) {
                    wanted.push_back({ pos, to + pos*store.row_sizes[layer][part] });
                }
            }
            store.read(layer, part, wanted);
        }
    });
}

void h2o_far_rows::fetch_range(size_t layer, h2o_cold_store::part_t part, uint32_t first, size_t n, uint8_t * dst, int ith, int nth) {
    const size_t begin = ith*n/nth;
    const size_t end   = (ith + 1)*n/nth;

    keep_failure([&]() {
        store.read_range(layer, part, first + begin, end - begin, dst + begin*store.row_sizes[layer][part]);
    });
}

void h2o_far_rows::fetch(size_t layer, const std::vector<int32_t> & memory, uint32_t n_head_kv, const ggml_h2o_attn_source_layout & at, size_t n_far,
        uint8_t * dst, int ith, int nth) {
    if (ith == 0) {
        n_layers_begun = layer + 1;
    }

    const size_t n       = positions.size();
    const size_t n_words = (n_far + 31)/32;

    // whole words of bits
    const size_t step  = ((n + nth - 1)/nth + 31)/32*32;
    const size_t begin = std::min(ith*step, n);
    const size_t end   = std::min(begin + step, n);

    for (uint32_t h = 0; h < n_head_kv; ++h) {
        uint32_t * own = (uint32_t *) (dst + at.own) + h*n_words;
        if (begin < end) { // else the words are another thread's
            std::fill(own + begin/32, own + (end + 31)/32, 0);
        }

        auto       it       = memory.begin() + h*memory.size()/n_head_kv;
        const auto head_end = memory.begin() + (h + 1)*memory.size()/n_head_kv;
        for (size_t i = begin; i < end; ++i) {
            it = std::find_if(it, head_end, [&](int32_t pos) { return pos >= positions[i]; });
            if (it != head_end && *it == positions[i]) {
                own[i/32] |= uint32_t(1) << i%32;
            }
        }
    }

    // K and then V, divided so that each thread reads as many rows as the others, and copies as many
    const auto divided = [&](size_t n_rows, h2o_cold_store::part_t part, const auto & f) {
        const size_t first = 2*n_rows*ith/nth;
        const size_t last  = 2*n_rows*(ith + 1)/nth;
        const size_t start = part*n_rows;
        f(std::clamp(first, start, start + n_rows) - start, std::clamp(last, start, start + n_rows) - start);
    };
    keep_failure([&]() {
        for (const auto part : { h2o_cold_store::K, h2o_cold_store::V }) {
            uint8_t * to = dst + (part == h2o_cold_store::K ? at.k : at.v);
            divided(missing.size(), part, [&](size_t begin, size_t end) { read_missing(layer, part, begin, end, to); });
            divided(present.size(), part, [&](size_t begin, size_t end) { copy_present(layer, part, begin, end, to); });
        }
    });

    // row 0 is finite
    if (n == 0 && ith == 0) {
        memset(dst + at.k, 0, store.row_sizes[layer][h2o_cold_store::K]);
        memset(dst + at.v, 0, store.row_sizes[layer][h2o_cold_store::V]);
    }
}

void h2o_far_rows::check() {
    if (!failure.empty()) {
        forget_kept();
        throw std::runtime_error(std::exchange(failure, std::string()));
    }
}
