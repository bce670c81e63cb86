#pragma once

#include "h2o/store/buffers.h"
#include "h2o/store/kv-layer.h"
#include "h2o/store/layout.h"

#include <cstdint>
#include <map>
#include <vector>

// Keys of every position, from which every query can choose. Where the cache has them all in Q8_0, they are its own rows.
// Elsewhere each layer has its keys a second time, in 4 bits. A sequence's row i is of position i, whether its K and V
// are still in the cache or not.
//
// The 32 numbers of a block share one scale, which the largest sets: the others lose their precision to it. So each
// block is rotated first, by a Hadamard matrix. That spreads a large number over the block. Queries are rotated, too,
// and products stay the same (QuaRot, arXiv:2404.00456).
class h2o_key_index {
public:
    // throws h2o_refusal, with the reason, if a layer cannot have one, or there is not enough memory
    h2o_key_index(const std::vector<h2o_kv_layer> & layers, const h2o_layout & layout, uint32_t n_seq);

    // whether the layer's keys are kept a second time
    bool has(int32_t il) const { return tensors.count(il) > 0; }

    // writes k, F32 [n_embd_head, n_head_kv, n_tokens], to rows I64 [n_tokens], of all sequences
    ggml_tensor * store(ggml_context * ctx, int32_t il, ggml_tensor * k, ggml_tensor * rows) const;

    // queries [n_embd_head, n_q, n_head], to be multiplied by keys of the index
    ggml_tensor * rotated_queries(ggml_context * ctx, int32_t il, ggml_tensor * q) const;

    // view of a sequence's first n rows, [n_embd_head, n, n_head_kv]
    ggml_tensor * keys(ggml_context * ctx, const h2o_kv_layer & layer, uint32_t seq, uint32_t n) const;

    // by layer: Q4_0 [n_embd_head*n_head_kv, n_rows*n_seq]
    const std::map<int32_t, ggml_tensor *> & storage() const { return tensors; }

    // of the Hadamard matrix, 0 where the cache has rotated keys
    uint32_t rotation_size(int32_t il) const;

    void copy(uint32_t from, uint32_t to, uint32_t n) const;

    // the sequence's rows are free
    void release(uint32_t seq) const;

    std::map<ggml_backend_buffer_type_t, size_t> sizes() const { return buffers.sizes(); }

    const size_t n_rows; // of a sequence

private:
    ggml_tensor * rotated(ggml_context * ctx, int32_t il, ggml_tensor * x) const;

    std::map<int32_t, ggml_tensor *> tensors;
    std::map<int32_t, ggml_tensor *> rotations; // F32 [block, block]; none where the cache has rotated keys and queries

    h2o_buffers buffers;
};
