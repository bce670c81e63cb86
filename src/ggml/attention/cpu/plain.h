#pragma once

#include "ggml/attention/args.h"
#include "ggml/attention/cpu/rows.h"

// The same as a kernel's tile in place, slowly, and of any numbers. The tile's rows are those from the row-th on.
void h2o_attn_plain_tile(const h2o_attn_tile & t, const h2o_attn_key_set & keys, const h2o_attn_args<int64_t> & args,
        int64_t row);
