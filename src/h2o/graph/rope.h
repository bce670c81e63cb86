#pragma once

#include "h2o/store/row-mover.h"

#include <optional>

struct ggml_tensor;

// The rotation of a layer's keys, found in the graph that computes them, for every architecture. None: they are not
// rotated. It applies to keys that are already rotated. hadamard: the matrix of llama.cpp's own rotation of quantized
// K, or NULL. Throws std::runtime_error if RoPE is not the last operator, or of another kind.
std::optional<h2o_rope> h2o_find_rope(const ggml_tensor * k, const ggml_tensor * hadamard, int32_t il);
