#include "ggml/attention/cuda/attention.cuh"

#include "ggml/attention/attention.h"
#include "ggml/attention/cuda/merge.cuh"
#include "ggml/attention/cuda/queries.cuh"
#include "ggml/attention/cuda/sums.cuh"
#include "ggml/attention/cuda/tiles.cuh"

#include <algorithm>
#include <type_traits>

constexpr int MAX_HEAD_SIZE = 576; // MLA's
constexpr int ROW_WARPS     = 4;   // of a block, with more rows than one warp has, and enough shared memory

constexpr size_t STATIC_SHARED = 1536; // bytes of shared memory that a kernel declares itself, at most

// Few rows: the keys are split, so that all of a device has work.
constexpr int MIN_SPLIT_KEYS = 64;
constexpr int MIN_SPLIT_ROWS = 256;

static int ceil_div(int64_t a, int64_t b) {
    return (int) ((a + b - 1)/b);
}

static bool is_known(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_Q8_0;
}

static h2o_cuda_rows rows_at(const ggml_tensor * t, const void * data) {
    h2o_cuda_rows res;
    res.data        = (const char *) data;
    res.stride      = t->nb[1];
    res.head_stride = t->nb[2];
    res.type        = t->type;
    res.d           = (int) t->ne[0];
    res.is_aligned  = t->type != GGML_TYPE_Q8_0 && t->ne[0] % 8 == 0 &&
            ((uintptr_t) data | t->nb[1] | t->nb[2]) % 16 == 0;
    return res;
}

h2o_cuda_attn::h2o_cuda_attn(const ggml_tensor * dst)
    : h2o_attn_args(dst), k(rows_at(dst->src[1], dst->src[1]->data)), v(rows_at(dst->src[2], dst->src[2]->data)),
      list_k(rows_at(dst->src[1], extra.k)), list_v(rows_at(dst->src[2], extra.v)) {
    d_q        = ceil_div(d_k, 16)*16;
    list_begin = ceil_div(n_k, 64)*64; // whole tiles of keys
    part_keys  = list_begin + extra.n_rows;
}

// bytes that a block of this device may have
static size_t shared_memory() {
    return ggml_cuda_info().devices[ggml_cuda_get_device()].smpbo;
}

// f(largest head size, warps of a block)
template <int D, typename F>
static void with_warps(int n_warps, const F & f) {
    using sizes = h2o_tile_sizes<D>;

    const size_t shared = std::max(sizes::shared(ROW_WARPS), sizes::shared_of_sums(ROW_WARPS));
    if (n_warps == 1 || shared + STATIC_SHARED > shared_memory()) {
        f(std::integral_constant<int, D>(), std::integral_constant<int, 1>());
    } else {
        f(std::integral_constant<int, D>(), std::integral_constant<int, ROW_WARPS>());
    }
}

template <typename F>
static void with_kernel(const h2o_cuda_attn & a, int n_rows, const F & f) {
    const int d       = std::max(a.d_k, a.d_v);
    const int n_warps = n_rows <= H2O_ATTN_WARP_ROWS ? 1 : ROW_WARPS;

    if (d <= 64) {
        with_warps<64>(n_warps, f);
    } else if (d <= 128) {
        with_warps<128>(n_warps, f);
    } else if (d <= 256) {
        with_warps<256>(n_warps, f);
    } else {
        with_warps<MAX_HEAD_SIZE>(n_warps, f);
    }
}

// How many parts of a work make blocks enough for the device, at most n_max.
static int parts_for(int64_t n_blocks, size_t shared, int64_t n_max) {
    const auto &  device    = ggml_cuda_info().devices[ggml_cuda_get_device()];
    const int64_t n_at_once = (int64_t) device.nsm*std::max<int64_t>(device.smpbo/shared, 1);

    return (int) std::max<int64_t>(std::min(n_at_once/n_blocks, n_max), 1);
}

static void launch_attention(h2o_cuda_attn & a, ggml_cuda_pool_alloc<float> & parts, cudaStream_t stream) {
    with_kernel(a, a.tile_rows(), [&](auto d, auto n_warps) {
        constexpr size_t shared = h2o_tile_sizes<d>::shared(n_warps);

        const int n_slices = ceil_div(a.d_v, h2o_tile_sizes<d>::d_out);
        const int n_each   = ceil_div(a.tile_rows(), n_warps*H2O_ATTN_WARP_ROWS);
        const dim3 grid(n_slices*a.n_head_kv, a.extra.n*n_each);

        const int n_keys  = a.part_keys;
        const int n_parts = parts_for((int64_t) grid.x*grid.y, shared, ceil_div(n_keys, MIN_SPLIT_KEYS));

        a.part_keys = ceil_div(ceil_div(n_keys, n_parts), 64)*64; // whole tiles
        a.n_parts   = ceil_div(n_keys, a.part_keys);
        if (a.n_parts > 1) {
            const int64_t n_states = (int64_t) a.n_parts*a.n_q*a.n_head;

            a.part_o = parts.alloc(n_states*(a.d_v + 2));
            a.part_m = a.part_o + n_states*a.d_v;
            a.part_l = a.part_m + n_states;
        }

        h2o_launch(h2o_attn_queries, dim3(ceil_div(a.n_q*a.group, H2O_ATTN_QUERY_WARPS), a.n_head_kv),
                H2O_ATTN_QUERY_WARPS*WARP_SIZE, 0, stream, a);

        const auto kernel = h2o_attn_tiles<d, n_warps>;
        CUDA_SET_SHARED_MEMORY_LIMIT(kernel, shared);
        h2o_launch(kernel, dim3(grid.x, grid.y, a.n_parts), n_warps*WARP_SIZE, shared, stream, a);
    });
    if (a.n_parts > 1) {
        h2o_launch(h2o_attn_merge, dim3(a.n_q*a.n_head), H2O_ATTN_MERGE_THREADS, 0, stream, a);
    }
}

static void launch_sums(h2o_cuda_attn & a, ggml_cuda_pool_alloc<float> & splits, cudaStream_t stream) {
    const int     n_units   = a.kind_of_sums == GGML_H2O_ATTN_QUERY_SUMS ? a.n_q : 1;
    const int     unit_rows = a.n_q/n_units*a.group;
    const int64_t n_sums    = (int64_t) a.n_k*a.n_head_kv*n_units;

    with_kernel(a, unit_rows, [&](auto d, auto n_warps) {
        constexpr size_t shared = h2o_tile_sizes<d>::shared_of_sums(n_warps);

        dim3 grid(ceil_div(a.n_k, h2o_tile_sizes<d>::n_keys), a.n_head_kv, n_units);

        // keys of the chunk are seen by a part of the rows only: twice as many
        const int n_splits = 2*parts_for((int64_t) grid.x*grid.y*grid.z, shared, ceil_div(unit_rows, 2*MIN_SPLIT_ROWS));

        a.split_rows = ceil_div(ceil_div(unit_rows, n_splits), n_warps*H2O_ATTN_WARP_ROWS)*n_warps*H2O_ATTN_WARP_ROWS;
        a.n_splits   = ceil_div(unit_rows, a.split_rows);
        a.split_sums = a.n_splits > 1 ? splits.alloc(a.n_splits*n_sums) : a.sums;
        grid.z      *= a.n_splits;

        const auto kernel = h2o_attn_sums<d, n_warps>;
        CUDA_SET_SHARED_MEMORY_LIMIT(kernel, shared);
        h2o_launch(kernel, grid, n_warps*WARP_SIZE, shared, stream, a, unit_rows);
    });
    if (a.n_splits > 1) {
        h2o_launch(h2o_attn_add_splits, dim3(ceil_div(n_sums, H2O_ATTN_SUM_THREADS)), H2O_ATTN_SUM_THREADS, 0, stream,
                a, n_sums);
    }
}

bool ggml_cuda_h2o_attn_supported(int device, const ggml_tensor * dst) {
    const auto & info = ggml_cuda_info().devices[device];

    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];

    if (!GGML_CUDA_CC_IS_NVIDIA(info.cc) || info.cc < GGML_CUDA_CC_AMPERE) {
        return false;
    }
    if (!is_known(k->type) || !is_known(v->type) || std::max(k->ne[0], v->ne[0]) > MAX_HEAD_SIZE) {
        return false;
    }
    if (h2o_tile_sizes<MAX_HEAD_SIZE>::shared(1) + STATIC_SHARED > info.smpbo) { // the largest
        return false;
    }
    return k->ne[2] <= UINT16_MAX && q->ne[1] <= UINT16_MAX/2 && q->ne[1]*q->ne[2] <= INT_MAX;
}

void ggml_cuda_op_h2o_attn(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    h2o_cuda_attn a(dst);

    const int64_t n_rows = (int64_t) a.n_q*a.n_head;

    ggml_cuda_pool_alloc<half>  rounded(ctx.pool(), n_rows*a.d_q);
    ggml_cuda_pool_alloc<float> factors(ctx.pool(), n_rows);
    ggml_cuda_pool_alloc<float> parts  (ctx.pool());
    ggml_cuda_pool_alloc<float> splits (ctx.pool());

    a.rounded = rounded.get();
    a.factors = factors.get();

    launch_attention(a, parts, ctx.stream());
    if (a.kind_of_sums) {
        launch_sums(a, splits, ctx.stream());
    }
}
