#define KERNEL h2o_low_rank_portable
#define VL 4

#include "ggml/low-rank/kernels/add.h"
