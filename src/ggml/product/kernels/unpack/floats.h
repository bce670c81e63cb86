// Types whose numbers stand for themselves: blocks of 32, to be multiplied in F32, with columns as they are.
//
//   dwords(block, i)  the i-th VL of a block's dwords, of each of which a product is added to a lane

namespace {

// GCC 12 makes more than an instruction of __builtin_convertvector
inline vec_u widen_words(const char * x) {
#if defined(__ARM_NEON)
    return (vec_u) vmovl_u16(vld1_u16((const uint16_t *) x));
#elif VL == 16
    return (vec_u) _mm512_cvtepu16_epi32(load_32(x));
#else
    return (vec_u) _mm256_cvtepu16_epi32(load_16(x));
#endif
}

struct float_kind {
    static constexpr int DWORDS = 32; // of a block

    // dwords 8i to 8i + 7 of a block of every column
    static void load_dwords(const char * const * column, int64_t offset, int i, vec_f * x) {
        load_columns(column, offset + i*32, x);
    }

    // a block of a column
    static void pack(const char * column, char * dst) {
        __builtin_memcpy(dst, column, 128);
    }

    static vec_f multiply_add(vec_f sum, vec_f w, vec_f x) {
        return sum + w*x;
    }
};

struct f16 : float_kind {
    using kind = float_kind;

    static vec_f dwords(const char * block, int64_t i) {
        return load_half(block + i*VL*2);
    }
};

struct bf16 : float_kind {
    using kind = float_kind;

    static vec_f dwords(const char * block, int64_t i) {
        return (vec_f) (widen_words(block + i*VL*2) << 16);
    }
};

} // namespace
