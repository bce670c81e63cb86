// Types with units of 8 blocks, whose scales are numbers of 4 to 8 bits, to be multiplied by one of the unit.

namespace {

struct q2_k : number_kind<2, 0, 2, true> {
    static constexpr int BLOCKS = 8;
    static constexpr int BYTES  = 84; // scales with minimums, numbers, both units' scales

    template <int N>
    static void scales(const char * row, floats * scale, floats * min) {
        const float d = half_at(row + 80);
        const float m = half_at(row + 82);
        for (int i = 0; i < 2; ++i) {
            const uint64_t x = qword_at(row + 8*i);
            scale[i] = d*floats_of(x & 0x0f0f0f0f0f0f0f0f);
            min[i]   = -m*floats_of(x >> 4 & 0x0f0f0f0f0f0f0f0f);
        }
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return moved<W>(load_same<W>(row + 16 + b/4*32), b%4*2, 2, 0) & 3;
    }
};

struct q3_k : number_kind<3, 4, 2, false> {
    static constexpr int BLOCKS = 8;
    static constexpr int BYTES  = 110; // high bits, low ones, scales, the unit's

    template <int N>
    static void scales(const char * row, floats * scale, floats *) {
        const float    d    = half_at(row + 108);
        const uint64_t low  = qword_at(row + 96);
        const uint32_t high = dword_at(row + 104);
        for (int i = 0; i < 2; ++i) {
            const uint64_t top = qword_of(high >> 4*i & 0x03030303, high >> (4*i + 2) & 0x03030303);
            scale[i] = d*(floats_of((low >> 4*i & 0x0f0f0f0f0f0f0f0f) | top << 4) - 32.0f);
        }
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        const bytes<W> low  = moved<W>(load_same<W>(row + 32 + b/4*32), b%4*2, 2, 0);
        const bytes<W> high = moved<W>(load_same<W>(row), b, 1, 2);
        return (low & 3) | (high & 4);
    }
};

// of Q4_K and Q5_K: d, that of minimums, 8 scales and minimums of 6 bits
inline void scales_of_6_bits(const char * unit, floats * scale, floats * min) {
    const uint32_t a = dword_at(unit + 4);
    const uint32_t b = dword_at(unit + 8);
    const uint32_t c = dword_at(unit + 12);

    scale[0] = half_at(unit)*floats_of(qword_of(a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030)));
    min[0]   = -half_at(unit + 2)*floats_of(qword_of(b & 0x3f3f3f3f, (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)));
}

struct q4_k : number_kind<4, 0, 1, true> {
    static constexpr int BLOCKS = 8;
    static constexpr int BYTES  = 144; // scales, numbers

    template <int N>
    static void scales(const char * row, floats * scale, floats * min) {
        scales_of_6_bits(row, scale, min);
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return moved<W>(load_same<W>(row + 16 + b/2*32), b%2*4, 4, 0) & 15;
    }
};

struct q5_k : number_kind<5, 0, 1, true> {
    static constexpr int BLOCKS = 8;
    static constexpr int BYTES  = 176; // scales, high bits, low ones

    template <int N>
    static void scales(const char * row, floats * scale, floats * min) {
        scales_of_6_bits(row, scale, min);
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        const bytes<W> low  = moved<W>(load_same<W>(row + 48 + b/2*32), b%2*4, 4, 0);
        const bytes<W> high = moved<W>(load_same<W>(row + 16), b, 1, 4);
        return (low & 15) | (high & 16);
    }
};

struct q6_k : number_kind<6, 32, 2, false> {
    static constexpr int BLOCKS = 8;
    static constexpr int BYTES  = 210; // low bits, high ones, scales, the unit's

    template <int N>
    static void scales(const char * row, floats * scale, floats *) {
        const float d = half_at(row + 208);
        for (int i = 0; i < 2; ++i) {
            scale[i] = d*floats_of_signed(qword_at(row + 192 + 8*i));
        }
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        const bytes<W> low  = moved<W>(load_each<W>(row + b/4*64 + b%2*32, 32), b%4/2*4, 0, 0);
        const bytes<W> high = moved<W>(load_same<W>(row + 128 + b/4*32), b%4*2, 2, 4);
        return (low & 15) | (high & 0x30);
    }
};

struct iq4_xs : number_kind<8, 128, 1, false> {
    static constexpr int BLOCKS = 8;
    static constexpr int BYTES  = 136; // d, high bits of scales, low ones, numbers

    template <int N>
    static void scales(const char * row, floats * scale, floats *) {
        const uint32_t head = dword_at(row);
        const uint64_t low  = dword_at(row + 4);
        uint64_t x = 0;
        for (int i = 0; i < 8; ++i) {
            x |= ((low >> 4*i & 15) | (uint64_t) (head >> (16 + 2*i) & 3) << 4) << 8*i;
        }
        scale[0] = half_at(row)*(floats_of(x) - 32.0f);
    }

    template <int W>
    static bytes<W> numbers(const char * row, int b) {
        return look_up<W>(iq4_table, nibbles<W>(row + 8 + b*16, 16));
    }
};

} // namespace
