#pragma once

#include "h2o/llama/memory/side/caches.h"

#include "llama-batch.h"
#include "llama-memory.h"

#include <cstdint>
#include <vector>

struct llama_context;
struct llama_context_params;
struct llama_cparams;
struct llama_model;

// What llama_context calls. All throw std::exception with the reason.

// Reads the parameters of H2O, if there are any. Makes the sequences' caches separate, and n_ubatch at most a chunk.
void h2o_configure(llama_context_params & params, llama_cparams & cparams);

llama_memory_i * h2o_create_memory(const llama_model & model, const llama_memory_params & params,
        const llama_cparams & cparams,
        const h2o_model_layers & layers);

// throws if H2O is on, and the model has no memory that it works with
void h2o_check_memory(const llama_model & model, const llama_cparams & cparams, const llama_memory_i * memory);

// Reserves the compute buffers of steps that are larger than a chunk. mctx simulates a full cache.
void h2o_reserve(llama_context & ctx, llama_memory_context_i * mctx);

// An ubatch as the inputs of a graph see it: with the positions that queries and keys are rotated to.
class h2o_rotated_ubatch {
public:
    h2o_rotated_ubatch(const llama_memory_context_i * mctx, const llama_ubatch & ubatch);

    const llama_ubatch * get() const { return &ubatch; }

private:
    llama_ubatch           ubatch;
    std::vector<llama_pos> pos;
};

// graph nodes that H2O adds to a model's, at most; 0 if the memory is not H2O's
uint32_t h2o_graph_max_nodes(const llama_memory_i * memory, uint32_t n_ubatch);
