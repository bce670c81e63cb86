#pragma once

#include "ggml/cuda/launch.cuh"

#include <climits>

// K or V: in the cache, or rows that were brought back.
struct h2o_cuda_rows {
    const char * data;
    int64_t      stride;      // from row to row, in bytes
    int64_t      head_stride;
    int          type;        // ggml_type
    int          d;
    bool         is_aligned;  // 8 numbers of F32, F16 or BF16 can be read at once

    __device__ __forceinline__ const char * row(int i, int h) const { return data + i*stride + h*head_stride; }
};

// The arguments of ggml_h2o_attn. A KV head's rows are numbered by query, then by head of the group.
struct h2o_cuda_attn {
    int n_q, n_head, n_head_kv, n_k, group;

    float scale;
    float softcap;

    const char  * q; // strides in bytes
    int64_t       q_stride, q_head_stride, q_block_stride;
    bool          q_is_aligned; // 4 numbers can be read at once
    h2o_cuda_rows k;
    h2o_cuda_rows v;

    const int32_t * rows; // or NULL; strides in numbers
    int64_t         rows_head_stride, rows_block_stride;
    const int32_t * first;  // or NULL
    const int32_t * limits; // or NULL
    const float   * sinks;  // or NULL

    // further keys
    const int32_t  * list_rows;   // NULL: none
    const int32_t  * list_first;  // NULL: queries see all of their list up to the first -1
    const int32_t  * list_last;
    int              n_lists, n_list_rows, list_size, list_offset;
    bool             lists_are_of_heads;
    const char     * list_k;      // where their rows are, which are as far from each other as those of k and v
    const char     * list_v;
    const uint32_t * source_own;  // NULL: rows of the cache
    int              n_source_own;

    // results
    float * o;
    float * sums;
    float * m;
    float * l;

    // where a row's softmax is made of parts: o, m and l of each, o not yet divided by l
    int     n_parts;
    float * part_o;
    float * part_m;
    float * part_l;

    __device__ __forceinline__ const float * q_of(int row, int h, int block) const {
        return (const float *) (q + row/group*q_stride + (int64_t) (h*group + row%group)*q_head_stride + block*q_block_stride);
    }

    __device__ __forceinline__ const int32_t * rows_of(int h, int block) const {
        return rows ? rows + h*rows_head_stride + block*rows_block_stride : nullptr;
    }

    // of a row's m and l
    __device__ __forceinline__ int64_t state_of(int row, int h, int block) const {
        return ((int64_t) block*n_head + h*group + row%group)*n_q + row/group;
    }

    __device__ __forceinline__ float * o_of(int row, int h, int block) const {
        return o + (((int64_t) block*n_q + row/group)*n_head + h*group + row%group)*v.d;
    }

    __device__ __forceinline__ int64_t part_state(int part, int64_t state) const { return (int64_t) part*n_head*n_q + state; }
};

// Which rows and keys the blocks of a launch compute: blockIdx.x counts tiles of rows, y KV heads and blocks of queries, z parts.
struct h2o_cuda_work {
    int  unit_rows;  // tiles end where units do
    int  unit_tiles;
    int  n_splits;   // of the own keys; 0: further keys only
    int  split_keys;
    bool has_lists;  // further keys come in a part after the own ones', or where these are one part in that
    int  first_part;
};

// x if it is the larger one or NaN: unlike fmaxf, NaN is kept
static __device__ __forceinline__ float h2o_max_or_nan(float max, float x) {
    return x > max || isnan(x) ? x : max;
}

// how many of n ascending numbers are x or less
static __device__ __forceinline__ int h2o_count_up_to(const int32_t * list, int n, int x) {
    int low = 0;
    while (n > 0) {
        const int half_n = n/2;
        if (list[low + half_n] <= x) {
            low += half_n + 1;
            n   -= half_n + 1;
        } else {
            n = half_n;
        }
    }
    return low;
}
