#pragma once

#include <cstdint>

struct ggml_tensor;

// What a prefill spends its time on.
enum h2o_part {
    H2O_PART_REST, // the layers' products, norms, RoPE, storing K and V
    H2O_PART_GATHER,
    H2O_PART_ATTENTION,
    H2O_PART_SCORES,
    H2O_PART_COUNT,
};

// Names t, so that it is known for the last node of a part.
void h2o_profile_ends_part(ggml_tensor * t, h2o_part part);

// Times of the parts, measured where their last nodes have been computed.
struct h2o_profile {
    int64_t t_part_us[H2O_PART_COUNT] = {};
    int64_t t_last_us = 0; // end of the last part

    // as llama_context_params::cb_eval: whether t ends a part (ask), or it has been computed
    bool eval(const ggml_tensor * t, bool ask);
};
