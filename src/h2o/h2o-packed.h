#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// A stack of numbers, with access to all of them. Each block of numbers takes as many bytes per number as its largest one needs:
// token ids below 2^16 take 2 bytes each, for example.
class h2o_packed {
public:
    static constexpr size_t BLOCK = 4096; // numbers

    size_t size() const { return blocks.size()*BLOCK + last.size(); }

    uint32_t operator[](size_t i) const {
        const size_t b = i/BLOCK;
        return b < blocks.size() ? unpack(blocks[b], i % BLOCK) : last[i % BLOCK];
    }

    void push_back(uint32_t x);
    void append(const int32_t * x, size_t n);

    // forgets all numbers but the first n; there are at least as many
    void truncate(size_t n);

    // the numbers [begin, begin + n)
    void copy(size_t begin, size_t n, uint32_t * dst) const;

    size_t bytes() const;

private:
    // the bytes of BLOCK numbers, lowest first, and what a read of 4 bytes may touch behind them
    using block = std::vector<uint8_t>;

    static constexpr size_t PAD = 3;

    // byte by byte, so that it is the same on any CPU; compilers make one load of it
    static uint32_t unpack(const block & b, size_t i) {
        const size_t width = b.size()/BLOCK;

        const uint8_t * x = b.data() + i*width;
        const uint32_t  n = x[0] | x[1] << 8 | x[2] << 16 | (uint32_t) x[3] << 24;

        return n & UINT32_MAX >> (32 - 8*width);
    }

    std::vector<block>    blocks; // full
    std::vector<uint32_t> last;   // the numbers after them
};
