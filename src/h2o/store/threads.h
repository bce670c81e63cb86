#pragma once

#include "ggml-backend.h"

#include <cstddef>
#include <functional>

// f(i) for every i in [0, n), by the threads of a CPU backend; one after the other if it is NULL.
void h2o_for_each(ggml_backend_t cpu, size_t n, const std::function<void(size_t)> & f);
