#pragma once

#include "ggml/attention/kernels/kernel.h"

#include <stdint.h>

struct ggml_tensor;

// A row of a head's keys or values, as float32.
void h2o_attn_read_row(const ggml_tensor * t, int64_t row, int64_t head, float * dst);

// Asks for a row that is read soon: rows by index are more than the CPU foresees.
void h2o_attn_prefetch_row(const ggml_tensor * t, int64_t row, int64_t head);

// Where a head's rows lie. False if the kernels have no name for their type, which is then not set.
bool h2o_attn_find_source(const ggml_tensor * t, int64_t head, const int32_t * rows, h2o_attn_source & res);
