#define KERNEL h2o_attn_portable
#define VL 4
#define NV 2
#define MR 6

#include "ggml/attention/kernels/f32.h"
