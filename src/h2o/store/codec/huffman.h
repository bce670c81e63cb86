#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

// A Huffman code of bytes whose words have at most MAX_BITS bits, so that one look at a small table decodes a byte. Bytes that hardly
// ever come share one word, the escape, after which they follow as they are. Bits are written from the lowest on.
class h2o_codec_huffman {
public:
    static constexpr uint32_t MAX_BITS      = 9;
    static constexpr uint32_t MAX_WORD_BITS = MAX_BITS + 8; // with the escape

    // how often each byte comes
    using histogram = std::array<uint32_t, 256>;

    struct word {
        uint32_t bits;
        uint32_t n_bits;
    };

    // What begins with the bits that are an entry's index: in its low byte how many bits that takes, in its high one what they are. After an
    // escape, ESCAPE is set and the byte follows.
    static constexpr uint16_t ESCAPE = 0x80;

    explicit h2o_codec_huffman(const histogram & counts);

    using words_t   = std::array<word, 256>;
    using entries_t = std::array<uint16_t, size_t(1) << MAX_BITS>;

    words_t   words;   // to encode
    entries_t entries; // to decode
};
