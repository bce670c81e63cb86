#include "h2o-far-rows.h"

#include "ggml-h2o-attn.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <utility>

void h2o_far_rows::set(std::vector<int32_t> step_positions) {
    positions = std::move(step_positions);

    const bool is_same = std::exchange(version, store.version()) == store.version();

    for (size_t layer = 0; layer < recent.size(); ++layer) {
        std::swap(recent[layer], coming[layer]);
        if (!is_same || !recent[layer].is_filled) {
            recent[layer].positions.clear();
        }
        coming[layer].positions.clear();
        coming[layer].is_filled = false;
        if (positions.size() <= MAX_RECENT) {
            coming[layer].positions = positions;
            for (const auto part : { h2o_cold_store::K, h2o_cold_store::V }) {
                coming[layer].bytes[part].resize(positions.size()*store.row_sizes[layer][part]);
            }
        }
    }
    decode_ahead();
}

void h2o_far_rows::decode_ahead() {
    end_step();
    progress = std::make_shared<std::atomic<uint32_t>>(0);

    // all layers have the same from the step before, those that failed nothing
    const auto & old = recent.front().positions;

    std::vector<int32_t> missing;
    std::set_difference(positions.begin(), positions.end(), old.begin(), old.end(), std::back_inserter(missing));
    store.decode_ahead(missing, progress);
}

int32_t h2o_far_rows::row_of(int32_t pos) const {
    return std::lower_bound(positions.begin(), positions.end(), pos) - positions.begin();
}

void h2o_far_rows::fetch_part(size_t layer, h2o_cold_store::part_t part, size_t begin, size_t end, uint8_t * dst) {
    const size_t size = store.row_sizes[layer][part];
    const rows & old  = recent[layer];

    const auto index_of = [&](int32_t pos) {
        const auto it = std::lower_bound(old.positions.begin(), old.positions.end(), pos);
        return it != old.positions.end() && *it == pos ? it - old.positions.begin() : -1;
    };

    for (size_t i = begin; i < end;) {
        const auto j = index_of(positions[i]);
        if (j >= 0) {
            memcpy(dst + i*size, old.bytes[part].data() + j*size, size);
            i++;
            continue;
        }
        size_t next = i + 1;
        while (next < end && index_of(positions[next]) < 0) {
            next++;
        }
        store.read(layer, part, positions.data() + i, next - i, dst + i*size);
        i = next;
    }

    if (!coming[layer].positions.empty()) {
        memcpy(coming[layer].bytes[part].data() + begin*size, dst + begin*size, (end - begin)*size);
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
        *progress = layer + 1;
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

    keep_failure([&]() {
        fetch_part(layer, h2o_cold_store::K, begin, end, dst + at.k);
        fetch_part(layer, h2o_cold_store::V, begin, end, dst + at.v);
    });

    if (ith == 0) {
        coming[layer].is_filled = true;
    }

    // row 0 is finite
    if (n == 0 && ith == 0) {
        memset(dst + at.k, 0, store.row_sizes[layer][h2o_cold_store::K]);
        memset(dst + at.v, 0, store.row_sizes[layer][h2o_cold_store::V]);
    }
}

void h2o_far_rows::check() {
    if (!failure.empty()) {
        for (auto & rows : coming) {
            rows.is_filled = false;
        }
        throw std::runtime_error(std::exchange(failure, std::string()));
    }
}
