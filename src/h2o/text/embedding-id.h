#pragma once

#include <cstddef>
#include <cstdint>

// What stands for a row of embeddings among the ids of a text: a hash of its bytes, from INT32_MIN to -2. No token has such an id, and
// -1 is what is not known. Equal rows have equal ids, so that what followed an image or a word given so is looked up like any text.
int32_t h2o_embedding_id(const float * row, size_t n);
