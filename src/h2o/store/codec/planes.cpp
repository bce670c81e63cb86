#include "h2o/store/codec/planes.h"

#include <algorithm>
#include <cstring>

namespace {

struct layout {
    uint32_t block_bytes;
    std::vector<h2o_codec_plane> planes;
};

// Scales are F16. Of Q4 and Q5 the quants are halves of bytes, and the fifth bits are 4 bytes of their own.
const layout LAYOUTS[H2O_CODEC_TYPE_COUNT] = {
    /* U8   */ {  1, { { 0, 1 } } },
    /* F16  */ {  2, { { 1, 1 }, { 0, 1 } } },
    /* BF16 */ {  2, { { 1, 1 }, { 0, 1 } } },
    /* F32  */ {  4, { { 3, 1 }, { 2, 1 }, { 1, 1 }, { 0, 1 } } },
    /* Q8_0 */ { 34, { { 1, 1 }, { 0, 1 }, { 2, 32 } } },
    /* Q4_0 */ { 18, { { 1, 1 }, { 0, 1 }, { 2, 16 } } },
    /* Q4_1 */ { 20, { { 1, 1 }, { 0, 1 }, { 3, 1 }, { 2, 1 }, { 4, 16 } } },
    /* Q5_0 */ { 22, { { 1, 1 }, { 0, 1 }, { 2, 4 }, { 6, 16 } } },
    /* Q5_1 */ { 24, { { 1, 1 }, { 0, 1 }, { 3, 1 }, { 2, 1 }, { 4, 4 }, { 8, 16 } } },
};

// Types of n bytes, highest first. With n known to the compiler these become shuffles of vectors.
template <int n>
void split(const uint8_t * blocks, uint64_t n_blocks, uint8_t * planes) {
    for (uint64_t i = 0; i < n_blocks; ++i) {
        for (int j = 0; j < n; ++j) {
            planes[j*n_blocks + i] = blocks[n*i + n - 1 - j];
        }
    }
}

template <int n>
void merge(const uint8_t * const * planes, uint64_t n_blocks, uint8_t * blocks) {
    const uint8_t * from[n]; // which stores to blocks do not change, as they might planes
    std::copy_n(planes, n, from);
    for (uint64_t i = 0; i < n_blocks; ++i) {
        for (int j = 0; j < n; ++j) {
            blocks[n*i + n - 1 - j] = from[j][i];
        }
    }
}

} // namespace

const std::vector<h2o_codec_plane> & h2o_codec_planes_of(h2o_codec_type type) {
    return LAYOUTS[type].planes;
}

uint32_t h2o_codec_block_bytes(h2o_codec_type type) {
    return LAYOUTS[type].block_bytes;
}

void h2o_codec_split(h2o_codec_type type, const uint8_t * blocks, uint64_t n_blocks, uint8_t * planes) {
    const uint32_t n = LAYOUTS[type].block_bytes;
    switch (n) {
        case 1: std::copy_n(blocks, n_blocks, planes); return;
        case 2: split<2>(blocks, n_blocks, planes);    return;
        case 4: split<4>(blocks, n_blocks, planes);    return;
    }
    for (const h2o_codec_plane & plane : LAYOUTS[type].planes) {
        for (uint64_t i = 0; i < n_blocks; ++i, planes += plane.n_bytes) {
            std::memcpy(planes, blocks + i*n + plane.offset, plane.n_bytes);
        }
    }
}

void h2o_codec_merge(h2o_codec_type type, const uint8_t * const * planes, uint64_t n_blocks, uint8_t * blocks) {
    const uint32_t n = LAYOUTS[type].block_bytes;
    switch (n) {
        case 1: std::copy_n(planes[0], n_blocks, blocks); return;
        case 2: merge<2>(planes, n_blocks, blocks);    return;
        case 4: merge<4>(planes, n_blocks, blocks);    return;
    }
    for (const h2o_codec_plane & plane : LAYOUTS[type].planes) {
        const uint8_t * bytes = *planes++;
        for (uint64_t i = 0; i < n_blocks; ++i, bytes += plane.n_bytes) {
            std::memcpy(blocks + i*n + plane.offset, bytes, plane.n_bytes);
        }
    }
}
