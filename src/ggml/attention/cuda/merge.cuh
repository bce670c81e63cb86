#pragma once

// Fuses the parts of a row's softmax, and its sink: m is their largest, a part weighs exp(m_part - m).

#include "ggml/attention/cuda/args.cuh"

constexpr int H2O_ATTN_MERGE_THREADS = 64;

// blockIdx.x: a row's state
static __global__ void __launch_bounds__(H2O_ATTN_MERGE_THREADS) h2o_attn_merge(const h2o_cuda_attn a) {
    const int64_t state = blockIdx.x;
    const int     head  = state/a.n_q;
    const int     query = state%a.n_q;

    const float sink = a.sinks ? a.sinks[head] : -INFINITY;

    float m = sink;
    for (int part = 0; part < a.n_parts; ++part) {
        m = h2o_max_or_nan(m, a.part_m[a.part_state(part, state)]);
    }
    const auto weight = [&](float x) { return m == -INFINITY ? 0.0f : expf(x - m); };

    float l = weight(sink);
    for (int part = 0; part < a.n_parts; ++part) {
        const int64_t i = a.part_state(part, state);
        l += weight(a.part_m[i])*a.part_l[i];
    }

    float * to = a.o + ((int64_t) query*a.n_head + head)*a.d_v;
    for (int j = threadIdx.x; j < a.d_v; j += blockDim.x) {
        float x = 0.0f;
        for (int part = 0; part < a.n_parts; ++part) {
            const int64_t i = a.part_state(part, state);
            x += weight(a.part_m[i])*a.part_o[i*a.d_v + j];
        }
        to[j] = l == 0.0f ? 0.0f : x/l;
    }
    if (threadIdx.x == 0) {
        a.m[state] = m;
        a.l[state] = l;
    }
}
