#define KERNEL h2o_keys_portable
#define VL 4

#include "ggml/keys/kernels/simd.h"
