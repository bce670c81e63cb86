#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// A stack of numbers, with access to all of them. Each block of numbers takes as many bits per number as its largest one needs:
// token ids below 2^16 take 2 bytes each, for example.
class h2o_packed {
public:
    static constexpr size_t BLOCK = 512; // numbers

    size_t size() const { return blocks.size()*BLOCK + last.size(); }

    uint32_t operator[](size_t i) const {
        const size_t b = i/BLOCK;
        return b < blocks.size() ? block_reader(blocks[b])(i % BLOCK) : last[i % BLOCK];
    }

    void push_back(uint32_t x);
    void append(const int32_t * x, size_t n);

    // forgets all numbers but the first n; there are at least as many
    void truncate(size_t n);

    // the numbers [begin, begin + n)
    void copy(size_t begin, size_t n, uint32_t * dst) const;

    size_t bytes() const;

private:
    // BLOCK numbers, one after the other from the lowest bit on, and what a read of 8 bytes may touch behind them
    using block = std::vector<uint8_t>;

    static constexpr size_t PAD = 7;

    struct block_reader {
        const uint8_t * data;
        size_t          width;
        uint64_t        mask;

        explicit block_reader(const block & b) : data(b.data()), width(b.size()*8/BLOCK), mask(((uint64_t) 1 << width) - 1) {}

        // byte by byte, so that it is the same on any CPU; compilers make one load of it
        uint32_t operator()(size_t i) const {
            const uint8_t * x = data + i*width/8;
            const uint64_t  n = (uint64_t) x[0]       | (uint64_t) x[1] <<  8 | (uint64_t) x[2] << 16 | (uint64_t) x[3] << 24 |
                                (uint64_t) x[4] << 32 | (uint64_t) x[5] << 40 | (uint64_t) x[6] << 48 | (uint64_t) x[7] << 56;
            return n >> i*width % 8 & mask;
        }
    };

    std::vector<block>    blocks; // full
    std::vector<uint32_t> last;   // the numbers after them
};
