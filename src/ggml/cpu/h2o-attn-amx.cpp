#include "h2o-attn-kernel.h"

const h2o_attn_kernel * const h2o_attn_amx = nullptr;
