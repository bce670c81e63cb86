#include "h2o-far-rows.h"

#include "ggml-h2o-attn.h"

#include <algorithm>
#include <cstring>
#include <exception>
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

    work.assign(positions.size() + 1, 0);
    for (size_t i = 0; i < positions.size(); ++i) {
        work[i + 1] = work[i] + (places.empty() || places[i].is_filled ? 1 : READ_WORK);
    }
}

size_t h2o_far_rows::begin_of(int ith, int nth) const {
    return std::lower_bound(work.begin(), work.end(), (uint64_t) work.back()*ith/nth) - work.begin();
}

void h2o_far_rows::keep_positions() {
    places.clear();
    if (positions.size() > MAX_KEPT) {
        return;
    }
    places.resize(positions.size());

    // first those that are here, so that the others do not take their places
    for (size_t i = 0; i < positions.size(); ++i) {
        const auto it = kept_by_position.find(positions[i]);
        if (it != kept_by_position.end()) {
            places[i] = { it->second->slot, true };
            kept.splice(kept.begin(), kept, it->second);
        }
    }
    size_t n_missing = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
        if (places[i].is_filled) {
            continue;
        }
        n_missing++;
        size_t slot = kept.size();
        if (slot == MAX_KEPT) {
            slot = kept.back().slot;
            kept_by_position.erase(kept.back().pos);
            kept.pop_back();
        }
        kept.push_front({ positions[i], slot });
        kept_by_position[positions[i]] = kept.begin();
        places[i].slot = slot;
    }
    if (store.codec) {
        store.codec->count_kept(positions.size() - n_missing, n_missing);
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

void h2o_far_rows::fetch_part(size_t layer, h2o_cold_store::part_t part, size_t begin, size_t end, uint8_t * dst) {
    const size_t size = store.row_sizes[layer][part];

    const auto is_kept = [&](size_t i) { return !places.empty() && places[i].is_filled; };
    const auto row     = [&](size_t i) { return kept_bytes[layer][part].data() + places[i].slot*size; };

    for (size_t i = begin; i < end;) {
        if (is_kept(i)) {
            memcpy(dst + i*size, row(i), size);
            i++;
            continue;
        }
        size_t next = i + 1;
        while (next < end && !is_kept(next)) {
            next++;
        }
        store.read(layer, part, positions.data() + i, next - i, dst + i*size);
        for (; i < next; ++i) {
            if (!places.empty()) {
                memcpy(row(i), dst + i*size, size);
            }
        }
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

void h2o_far_rows::fetch_range(size_t layer, h2o_cold_store::part_t part, uint32_t first, size_t n, uint8_t * dst, int ith, int nth) {
    const size_t begin = ith*n/nth;
    const size_t end   = (ith + 1)*n/nth;

    keep_failure([&]() {
        store.read_range(layer, part, first + begin, end - begin, dst + begin*store.row_sizes[layer][part]);
    });
}

void h2o_far_rows::fetch(size_t layer, const std::vector<int32_t> & memory, uint32_t n_head_kv, const ggml_h2o_far_parts & at, size_t n_far,
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
        std::fill(own + begin/32, own + (end + 31)/32, 0);

        auto       it       = memory.begin() + h*memory.size()/n_head_kv;
        const auto head_end = memory.begin() + (h + 1)*memory.size()/n_head_kv;
        for (size_t i = begin; i < end; ++i) {
            it = std::find_if(it, head_end, [&](int32_t pos) { return pos >= positions[i]; });
            if (it != head_end && *it == positions[i]) {
                own[i/32] |= uint32_t(1) << i%32;
            }
        }
    }

    const size_t first = begin_of(ith, nth);
    const size_t last  = begin_of(ith + 1, nth);
    keep_failure([&]() {
        fetch_part(layer, h2o_cold_store::K, first, last, dst + at.k);
        fetch_part(layer, h2o_cold_store::V, first, last, dst + at.v);
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
