#include "h2o/text/piece.h"

#include <algorithm>
#include <unordered_map>

static constexpr uint32_t BLOCK    = 64;
static constexpr size_t   MAX_HITS = 8; // blocks of one hash: text may repeat itself

// tokens after an edit that are read again with it: as many as the edit has
static constexpr uint32_t MIN_AGAIN = 32, MAX_AGAIN = 256;

// of the block that begins at each position: polynomials modulo 2^64
static std::vector<uint64_t> block_hashes(const std::vector<int32_t> & text) {
    constexpr uint64_t X = 0x9e3779b97f4a7c15;

    std::vector<uint64_t> prefix(text.size() + 1);
    for (size_t i = 0; i < text.size(); ++i) {
        prefix[i + 1] = prefix[i]*X + (uint32_t) text[i];
    }
    uint64_t power = 1;
    for (uint32_t i = 0; i < BLOCK; ++i) {
        power *= X;
    }
    std::vector<uint64_t> res;
    for (size_t i = 0; i + BLOCK <= text.size(); ++i) {
        res.push_back(prefix[i + BLOCK] - prefix[i]*power);
    }
    return res;
}

std::vector<h2o_piece> h2o_find_pieces(const std::vector<int32_t> & text, const std::vector<int32_t> & next,
        uint32_t start, uint32_t n_min) {
    std::unordered_map<uint64_t, std::vector<uint32_t>> blocks; // where they begin

    const auto known = block_hashes(text);
    for (size_t i = 0; i < known.size(); i += BLOCK) {
        if (auto & hits = blocks[known[i]]; hits.size() < MAX_HITS) {
            hits.push_back(i);
        }
    }

    std::vector<h2o_piece> res;
    uint32_t end = start; // no piece has the tokens from here on

    const auto hashes = block_hashes(next);
    for (uint32_t i = start; i < hashes.size(); ++i) {
        const auto hits = blocks.find(hashes[i]);
        h2o_piece  best = {};
        for (const uint32_t block : hits == blocks.end() ? std::vector<uint32_t>() : hits->second) {
            uint32_t back = 0;
            while (back < block && back < i - end && text[block - back - 1] == next[i - back - 1]) {
                back++;
            }
            const auto from = text.begin() + (block - back);
            const uint32_t n = std::mismatch(from, text.end(), next.begin() + (i - back), next.end()).first - from;
            if (n >= back + BLOCK && n > best.n) {
                best = { block - back, n, i - back };
            }
        }
        const uint32_t n_again = std::clamp(best.to - end, MIN_AGAIN, MAX_AGAIN);
        if (best.n >= std::max(n_min, n_again + 1)) {
            res.push_back({ best.from + n_again, best.n - n_again, best.to + n_again });
            end = best.to + best.n;
            i   = end - 1;
        }
    }
    return res;
}
