#define KERNEL h2o_keys_portable
#define VL 4

#include "h2o-keys-simd.h"
