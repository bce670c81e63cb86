#include "h2o/store/codec/huffman.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace {

constexpr uint32_t MAX_BITS = h2o_codec_huffman::MAX_BITS;
constexpr size_t   RARE     = 256; // the symbol after the bytes
constexpr size_t   N        = RARE + 1;

using counts_t  = std::array<uint64_t, N>;
using lengths_t = std::array<uint32_t, N>;

// Huffman's: the two rarest become one until one is left. A symbol that never comes has length 0.
lengths_t tree_lengths(const counts_t & counts) {
    using node = std::pair<uint64_t, size_t>; // count, number

    std::priority_queue<node, std::vector<node>, std::greater<>> rarest;
    for (size_t s = 0; s < N; ++s) {
        if (counts[s] > 0) {
            rarest.emplace(counts[s], s);
        }
    }
    std::array<size_t, 2*N> parent{};
    size_t n_nodes = N;
    while (rarest.size() > 1) {
        const node a = rarest.top();
        rarest.pop();
        const node b = rarest.top();
        rarest.pop();
        parent[a.second] = parent[b.second] = n_nodes;
        rarest.emplace(a.first + b.first, n_nodes++);
    }
    lengths_t res{};
    for (size_t s = 0; s < N; ++s) {
        for (size_t i = s; counts[s] > 0 && i != n_nodes - 1; i = parent[i]) {
            res[s]++;
        }
    }
    return res;
}

// Counts are made more alike until no word is too long.
lengths_t limited_lengths(counts_t counts) {
    for (;;) {
        const lengths_t res = tree_lengths(counts);
        if (*std::max_element(res.begin(), res.end()) <= MAX_BITS) {
            return res;
        }
        for (uint64_t & count : counts) {
            count = (count + 1)/2;
        }
    }
}

uint32_t reversed(uint32_t bits, uint32_t n_bits) {
    uint32_t res = 0;
    for (uint32_t i = 0; i < n_bits; ++i) {
        res |= (bits >> i & 1) << (n_bits - 1 - i);
    }
    return res;
}

} // namespace

h2o_codec_huffman::h2o_codec_huffman(const histogram & counts) {
    const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t(0));

    counts_t symbols{};
    symbols[RARE] = 1;
    for (size_t s = 0; s < RARE; ++s) {
        // the escape and 8 bits are not longer than a word of its own
        const bool is_rare = (uint64_t) counts[s] << MAX_BITS < total;
        symbols[is_rare ? RARE : s] += counts[s];
    }
    if (std::count(symbols.begin(), symbols.end(), 0) == N - 1) {
        symbols[0] = 1; // a word has one bit at least
    }
    const lengths_t lengths = limited_lengths(symbols);

    // canonical: shorter words first
    uint32_t code = 0;
    std::array<uint32_t, N> codes{};
    for (uint32_t n = 1; n <= MAX_BITS; ++n, code <<= 1) {
        for (size_t s = 0; s < N; ++s) {
            if (lengths[s] == n) {
                codes[s] = reversed(code++, n);
            }
        }
    }
    for (size_t s = 0; s < RARE; ++s) {
        words[s] = lengths[s] > 0 ? word{ codes[s], lengths[s] } :
            word{ codes[RARE] | (uint32_t) s << lengths[RARE], lengths[RARE] + 8 };
    }
    entries = {};
    for (size_t s = 0; s < N; ++s) {
        for (size_t i = codes[s]; lengths[s] > 0 && i < entries.size(); i += size_t(1) << lengths[s]) {
            entries[i] = s == RARE ? ESCAPE | lengths[s] : s << 8 | lengths[s];
        }
    }
}
