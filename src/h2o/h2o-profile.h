#pragma once

struct ggml_tensor;

// What a prefill spends its time on.
enum h2o_part {
    H2O_PART_REST, // the layers' products, norms, RoPE, storing K and V
    H2O_PART_GATHER,
    H2O_PART_ATTENTION,
    H2O_PART_SCORES,
    H2O_PART_COUNT,
};

// Names t, so that llama_h2o_profile_callback knows it for the last node of a part.
void h2o_profile_ends_part(ggml_tensor * t, h2o_part part);
