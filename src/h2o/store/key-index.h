#pragma once

#include "h2o/store/buffers.h"

#include <cstdint>
#include <map>
#include <vector>

class llama_io_read_i;
class llama_io_write_i;

// The keys of each layer a second time, in 4 bits: cheap to read, so that every query can choose among all of them. Rows are
// those of the K cache, n_rows for each sequence; what is written later to a row replaces it.
class h2o_key_index {
public:
    // throws std::invalid_argument, with the reason, if a layer cannot have one; std::runtime_error if there is not enough memory
    h2o_key_index(const llama_model & model, const std::vector<int32_t> & layer_ids, uint32_t n_rows, uint32_t n_seq_max, bool offload);

    bool has(int32_t il) const { return layers.count(il) > 0; }

    // writes k, F32 [n_embd_head, n_head_kv, n_tokens], to rows I64 [n_tokens]
    ggml_tensor * store(ggml_context * ctx, int32_t il, ggml_tensor * k, ggml_tensor * rows) const;

    // view of a sequence's first n rows, [n_embd_head, n, n_head_kv]
    ggml_tensor * keys(ggml_context * ctx, int32_t il, uint32_t id, uint32_t n) const;

    // the first n rows of a sequence, in all layers
    void write(llama_io_write_i & io, uint32_t id, uint32_t n) const;
    void read (llama_io_read_i  & io, uint32_t id, uint32_t n);
    void copy (uint32_t from, uint32_t to, uint32_t n);

    std::map<ggml_backend_buffer_type_t, size_t> sizes() const { return buffers.sizes(); }

private:
    struct layer {
        ggml_tensor * keys; // Q4_0 [n_embd_head*n_head_kv, n_rows*n_seq_max]
        int64_t       n_embd_head;
    };

    std::map<int32_t, layer> layers;

    const size_t n_rows;

    h2o_buffers buffers;
};
