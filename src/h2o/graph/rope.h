#pragma once

#include "h2o/store/key-rotor.h"

#include <optional>

struct ggml_tensor;

// How the model rotates a layer's keys, read off the graph that computes them: so it holds for every architecture. None: it does not.
// What is returned rotates a key that is rotated already. hadamard: the matrix of llama.cpp's own rotation of quantized K, or NULL.
// Throws std::runtime_error, with the reason, if that cannot be: something else comes after RoPE, or RoPE is of another kind.
std::optional<h2o_rope> h2o_find_rope(const ggml_tensor * k, const ggml_tensor * hadamard, int32_t il);
