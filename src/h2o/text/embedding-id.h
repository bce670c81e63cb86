#pragma once

#include <cstddef>
#include <cstdint>

// Id of a row of embeddings in a text: a hash of its bytes, from INT32_MIN to -2, which no token has; -1 is unknown.
// Equal rows have equal ids.
int32_t h2o_embedding_id(const float * row, size_t n);
