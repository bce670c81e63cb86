#include "h2o/text/packed.h"

#include <algorithm>
#include <utility>

void h2o_packed::push_back(uint32_t x) {
    last.push_back(x);
    if (last.size() < BLOCK) {
        return;
    }

    const uint32_t max = *std::max_element(last.begin(), last.end());

    size_t width = 1;
    while (width < 32 && max >> width > 0) {
        width++;
    }

    block    b;
    uint64_t bits = 0; // the lowest n_bits of them are to be written
    size_t   n_bits = 0;
    b.reserve(BLOCK*width/8 + PAD);
    for (const uint64_t number : last) {
        bits |= number << n_bits;
        for (n_bits += width; n_bits >= 8; n_bits -= 8) {
            b.push_back(bits);
            bits >>= 8;
        }
    }
    b.resize(b.size() + PAD);
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
        } else {
            const block_reader read(blocks[b]);
            for (size_t i = 0; i < n_here; ++i) {
                dst[i] = read(first + i);
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
