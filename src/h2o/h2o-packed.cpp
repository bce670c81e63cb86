#include "h2o-packed.h"

#include <algorithm>
#include <utility>

void h2o_packed::push_back(uint32_t x) {
    last.push_back(x);
    if (last.size() < BLOCK) {
        return;
    }

    const uint32_t max = *std::max_element(last.begin(), last.end());

    size_t width = 1;
    while (width < 4 && max >> 8*width > 0) {
        width++;
    }

    block b(BLOCK*width + PAD);
    for (size_t i = 0; i < BLOCK; ++i) {
        for (size_t j = 0; j < width; ++j) {
            b[i*width + j] = last[i] >> 8*j;
        }
    }
    blocks.push_back(std::move(b));
    last.clear();
}

void h2o_packed::append(const int32_t * x, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        push_back(x[i]);
    }
}

void h2o_packed::truncate(size_t n) {
    const size_t n_blocks = n/BLOCK;
    if (n_blocks < blocks.size()) {
        last.resize(BLOCK);
        copy(n_blocks*BLOCK, BLOCK, last.data());
        blocks.resize(n_blocks);
    }
    last.resize(n - n_blocks*BLOCK);
}

void h2o_packed::copy(size_t begin, size_t n, uint32_t * dst) const {
    const size_t end = begin + n;

    for (size_t b = begin/BLOCK; begin < end; ++b) {
        const size_t first  = begin % BLOCK;
        const size_t n_here = std::min(BLOCK - first, end - begin);
        if (b == blocks.size()) {
            std::copy_n(last.data() + first, n_here, dst);
        } else if (blocks[b].size()/BLOCK == 1) { // vectors
            std::copy_n(blocks[b].data() + first, n_here, dst);
        } else {
            for (size_t i = 0; i < n_here; ++i) {
                dst[i] = unpack(blocks[b], first + i);
            }
        }
        begin += n_here;
        dst   += n_here;
    }
}

size_t h2o_packed::bytes() const {
    size_t res = blocks.capacity()*sizeof(block) + last.capacity()*sizeof(uint32_t);
    for (const block & b : blocks) {
        res += b.capacity();
    }
    return res;
}
