#include "h2o/text/piece.h"

#include <algorithm>
#include <unordered_map>

static constexpr size_t   BLOCK    = 64;
static constexpr uint32_t N_AGAIN  = 32;                 // tokens after an edit that are read with it
static constexpr uint64_t FACTOR   = 0x9e3779b97f4a7c15; // odd: of a polynomial modulo 2^64
static constexpr size_t   MAX_HITS = 8;                  // blocks of one hash: text may repeat itself

// of the block of tokens that ends before `end`, from that of the one before it
namespace {
struct rolling_hash {
    uint64_t value = 0;
    uint64_t last  = 1; // FACTOR^BLOCK, of the token that leaves

    rolling_hash() {
        for (size_t i = 0; i < BLOCK; ++i) {
            last *= FACTOR;
        }
    }

    void add(int32_t token) { value = value*FACTOR + (uint32_t) token + 1; }
    void drop(int32_t token) { value -= last*((uint32_t) token + 1); } // after add()
};
} // namespace

std::vector<h2o_piece> h2o_find_pieces(const std::vector<int32_t> & text, const std::vector<int32_t> & next,
        uint32_t start, uint32_t n_min) {
    std::unordered_map<uint64_t, std::vector<uint32_t>> blocks; // where they begin, by hash
    for (size_t first = 0; first + BLOCK <= text.size(); first += BLOCK) {
        rolling_hash hash;
        for (size_t i = first; i < first + BLOCK; ++i) {
            hash.add(text[i]);
        }
        auto & hits = blocks[hash.value];
        if (hits.size() < MAX_HITS) {
            hits.push_back(first);
        }
    }

    std::vector<h2o_piece> res;
    rolling_hash hash;
    for (size_t end = start, first = start; end < next.size();) { // `first`: no piece has the tokens from here on
        hash.add(next[end++]);
        if (end - first > BLOCK) {
            hash.drop(next[end - 1 - BLOCK]);
        }
        const auto hits = end - first < BLOCK ? blocks.end() : blocks.find(hash.value);
        if (hits == blocks.end()) {
            continue;
        }
        h2o_piece best = {};
        for (const uint32_t block : hits->second) {
            uint32_t from = block, to = end - BLOCK;
            while (from > 0 && to > first && text[from - 1] == next[to - 1]) {
                from--;
                to--;
            }
            const uint32_t n = std::mismatch(text.begin() + from, text.end(), next.begin() + to, next.end()).first -
                text.begin() - from;
            if (n > best.n) {
                best = { from, n, to };
            }
        }
        if (best.n >= std::max<size_t>(n_min, BLOCK) && best.to + best.n >= end) {
            res.push_back({ best.from + N_AGAIN, best.n - N_AGAIN, best.to + N_AGAIN });
            end = first = best.to + best.n;
            hash.value  = 0;
        }
    }
    return res;
}
