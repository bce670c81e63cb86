// Types whose blocks stand alone.

namespace {

// N halves, `stride` bytes apart
template <int N>
inline floats halves_at(const char * x, int stride) {
    uint16_t h[8] = {};
    for (int i = 0; i < N; ++i) {
        __builtin_memcpy(&h[i], x + i*stride, sizeof(uint16_t));
    }
    return widen(halves { h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7] });
}

// Scales in F16 at the block's start, then minimums, if there are any.
template <int BYTES_, int BITS, int ZERO, bool MINS>
struct block_type : number_kind<BITS, ZERO, 1, MINS> {
    static constexpr int BLOCKS = 1;
    static constexpr int BYTES  = BYTES_;

    template <int N>
    static void scales(const char * row, floats * scale, floats * min) {
        scale[0] = halves_at<N>(row, BYTES);
        if (MINS) {
            min[0] = halves_at<N>(row + 2, BYTES);
        }
    }
};

struct q4_0 : block_type<18, 4, 8, false> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return nibbles<W>(row + b*BYTES + 2, BYTES);
    }
};

struct q4_1 : block_type<20, 4, 0, true> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return nibbles<W>(row + b*BYTES + 4, BYTES);
    }
};

struct q5_0 : block_type<22, 5, 16, false> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return add_bits<W>(nibbles<W>(row + b*BYTES + 6, BYTES), row + b*BYTES + 2, BYTES, 16);
    }
};

struct q5_1 : block_type<24, 5, 0, true> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return add_bits<W>(nibbles<W>(row + b*BYTES + 8, BYTES), row + b*BYTES + 4, BYTES, 16);
    }
};

struct q8_0 : block_type<34, 8, 128, false> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return load_each<W>(row + b*BYTES + 2, BYTES) ^ 128;
    }
};

// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113, with 128 added
alignas(16) const uint8_t iq4_table[16] = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 };

struct iq4_nl : block_type<18, 8, 128, false> {
    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return look_up<W>(iq4_table, nibbles<W>(row + b*BYTES + 2, BYTES));
    }
};

// 0, 1, 2, 3, 4, 6, 8, 12 and these with a minus, with 16 added: twice the numbers
alignas(16) const uint8_t mxfp4_table[16] = { 16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4 };

struct mxfp4 : number_kind<5, 16, 1, false> {
    static constexpr int BLOCKS = 1;
    static constexpr int BYTES  = 17;

    template <int N>
    static void scales(const char * row, floats * scale, floats *) {
        uint32_t e[8] = {};
        for (int i = 0; i < N; ++i) {
            e[i] = (uint8_t) row[i*BYTES];
        }
        scale[0] = halved_powers(e);
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return look_up<W>(mxfp4_table, nibbles<W>(row + b*BYTES + 1, BYTES));
    }
};

} // namespace
