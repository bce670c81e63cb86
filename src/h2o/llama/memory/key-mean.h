#pragma once

#include "h2o/store/buffers.h"
#include "h2o/store/kv-layer.h"

#include <vector>

struct llama_model;

// Quantized keys are stored less one vector for each KV head, which changes no softmax: all logits of a query move by the
// same amount. It is what the keys' bias is on average over positions, after RoPE. In the models that have a bias, this
// is the larger part of a key, and 8 bits have little left for the rest. It follows from the model alone, so
// rows mean the same in every state.
void h2o_add_key_means(const llama_model & model, std::vector<h2o_kv_layer> & layers, h2o_buffers & buffers);
