#pragma once

// What products need of NEON besides how a step is done.

namespace {

// 8 dwords of each row: the first one of all rows, the second one, and so on
inline void interleave(const bytes<1> * row, char * dst) {
    for (int h = 0; h < 2; ++h) {
        vec_f x[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            x[r] = (vec_f) row[r].v[h];
        }
        transpose<ROWS>(x);
        for (int i = 0; i < 4; ++i) {
            store((float *) (dst + (h*4 + i)*16), x[i]);
        }
    }
}

// dword i of every column in x[i], i from 0 to 7
inline void load_columns(const char * const * column, int64_t offset, vec_f * x) {
    for (int h = 0; h < 2; ++h) {
        for (int i = 0; i < 4; ++i) {
            x[h*4 + i] = load((const float *) (column[i] + offset + h*16));
        }
        transpose<4>(x + h*4);
    }
}

// sums of 4 signed bytes, times `by`
inline void put_sums(const char * numbers, int by, char * dst) {
    for (int h = 0; h < 2; ++h) {
        const int32x4_t sum = vpaddlq_s16(vpaddlq_s8(vld1q_s8((const int8_t *) numbers + h*16)));
        vst1q_s32((int32_t *) (dst + h*16), vmulq_n_s32(sum, by));
    }
}

// Of scales for 8 blocks, each in all lanes of its numbers, for the j-th vector: half a block.
template <int SCALES>
inline vec_f spread_scales(const floats * s, int j) {
    const int i = j*SCALES/2;
    return broadcast(s[i/8].v[i%8/4][i%4]);
}

// each of 8 scales once, or twice side by side
template <int SCALES>
inline void load_scales(const char * src, floats * s) {
    const floats x = load_floats(src);
    if constexpr (SCALES == 2) {
        for (int h = 0; h < 2; ++h) {
            s[h] = { { vzip1q_f32(x.v[h], x.v[h]), vzip2q_f32(x.v[h], x.v[h]) } };
        }
    } else {
        s[0] = x;
    }
}

// The j-th vector of a row's numbers: half a block.
template <typename T, int N>
inline vec_i load_numbers(const char * row, int j) {
    return (vec_i) T::template numbers<1>(row, j/2).v[j%2];
}

inline floats add_halves(vec_f x) {
    return { { (float32x4_t) x, vdupq_n_f32(0.0f) } };
}

// The sum of each vector's numbers.
inline void add_up(const floats (& x)[ROWS], float * sum) {
    for (int r = 0; r < ROWS; ++r) {
        sum[r] = vaddvq_f32(vaddq_f32(x[r].v[0], x[r].v[1]));
    }
}

} // namespace
