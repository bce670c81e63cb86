#pragma once

#include "ggml/cuda/numbers.cuh"

#include <climits>

// K or V: in the cache, or rows brought back.
struct h2o_cuda_rows {
    const char * data;
    int64_t      stride;      // from row to row, in bytes
    int64_t      head_stride;
    int          type;        // ggml_type
    int          d;
    bool         is_aligned;  // 16 bytes can be copied at once

    __device__ __forceinline__ const char * row(int i, int h) const { return data + i*stride + h*head_stride; }
};

// The arguments of ggml_h2o_attn. A KV head's rows are numbered by query, then by head of the group.
struct h2o_cuda_attn {
    int n_q, n_head, n_head_kv, n_k, group;
    int n_block;

    float scale;
    float softcap;

    const char  * q; // strides in bytes
    int64_t       q_stride, q_head_stride, q_block_stride;
    char        * rounded; // q in the type of products: [n_block][n_head_kv][rows][d_q]
    int           d_q;     // d of K, a multiple of 16: then zeros
    float       * factors; // [n_block][n_head_kv][rows]: of their products
    h2o_cuda_rows k;
    h2o_cuda_rows v;

    const int32_t * rows; // or NULL; strides in numbers
    int64_t         rows_head_stride, rows_block_stride;
    const int32_t * first;  // or NULL
    const int32_t * limits; // or NULL
    const float   * sinks;  // or NULL

    // extra keys: a list of rows for each tile of queries, -1 where there are fewer
    const int32_t  * list_rows;  // NULL: none
    const int32_t  * list_first; // the first query that sees a row not among the head's keys; NULL: all do
    int              n_list_rows;
    bool             lists_are_of_heads;
    int              tile, offset, n_tiles; // without lists, all queries are in one
    h2o_cuda_rows    list_k;     // where their rows are
    h2o_cuda_rows    list_v;
    const uint32_t * source_keys; // which rows are among each head's keys; NULL: rows of the cache
    int              n_source_words;

    // The head's keys are numbered from 0 on, a list's from list_begin on. A part of a row's softmax has part_keys of
    // them.
    int list_begin;
    int part_keys;
    int n_parts;

    // sums of several splits of the rows
    int     split_rows;
    int     n_splits;
    float * split_sums; // [n_splits], each as sums

    // results
    float * o;
    float * sums;
    float * m;
    float * l;

    // with several parts: o, m and l of each, o not yet divided by l
    float * part_o;
    float * part_m;
    float * part_l;

    __device__ __forceinline__ const float * q_of(int row, int h, int block) const {
        const int64_t head = h*group + row%group;
        return (const float *) (q + row/group*q_stride + head*q_head_stride + block*q_block_stride);
    }

    __device__ __forceinline__ const int32_t * rows_of(int h, int block) const {
        return rows ? rows + h*rows_head_stride + block*rows_block_stride : nullptr;
    }

    // index of a row's rounded q
    __device__ __forceinline__ int64_t place_of(int row, int h, int block) const {
        return ((int64_t) block*n_head_kv + h)*n_q*group + row;
    }

    // index of a row's m and l
    __device__ __forceinline__ int64_t state_of(int row, int h, int block) const {
        return ((int64_t) block*n_head + h*group + row%group)*n_q + row/group;
    }

    __device__ __forceinline__ float * o_of(int row, int h, int block) const {
        return o + (((int64_t) block*n_q + row/group)*n_head + h*group + row%group)*v.d;
    }

    __host__ __device__ __forceinline__ int tile_rows() const { return (tile < n_q ? tile : n_q)*group; }

    __device__ __forceinline__ int64_t part_state(int part,
            int64_t state) const { return (int64_t) part*n_head*n_q + state; }
};

// How many of n numbers come before the first for which is_before is false. A warp calls it.
template <typename F>
static __device__ __forceinline__ int h2o_count_before(const int32_t * list, int n, const F & is_before) {
    const int lane = threadIdx.x%WARP_SIZE;

    int low = 0;
    while (n > 0) {
        const int step  = (n + WARP_SIZE - 1)/WARP_SIZE;
        const int last  = min((lane + 1)*step, n) - 1;
        const int count = __popc(__ballot_sync(0xffffffff, is_before(list[low + last])))*step;
        if (count >= n) {
            return low + n;
        }
        low += count;
        n    = min(step, n - count) - 1;
    }
    return low;
}

// whether one of n ascending numbers is x
static __device__ __forceinline__ bool h2o_has(const int32_t * list, int n, int x) {
    while (n > 0) {
        const int half_n = n/2;
        if (list[half_n] == x) {
            return true;
        }
        if (list[half_n] < x) {
            list += half_n + 1;
            n    -= half_n + 1;
        } else {
            n = half_n;
        }
    }
    return false;
}
