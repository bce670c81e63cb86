#pragma once

#include <cstdint>
#include <vector>

// A part of a text that comes again in another one: n tokens from `from` on, in the other from `to` on.
struct h2o_piece {
    uint32_t from;
    uint32_t n;
    uint32_t to;
};

// The pieces of at least n_min tokens of `text` that are in `next` at or after `start`, in their order there, apart from
// each other. Found as rsync finds them: by hashes of the text's blocks, and one of `next` that rolls on; each hit is
// extended both ways. Runs of fewer than 2*64 tokens may be missed. A piece lacks its first tokens, which are to be read
// again with the edit before it: as many as that has, 32 to 256.
std::vector<h2o_piece> h2o_find_pieces(const std::vector<int32_t> & text, const std::vector<int32_t> & next,
        uint32_t start, uint32_t n_min);
