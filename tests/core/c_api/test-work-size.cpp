// Work buffers of our operators: the size planned for some threads is enough for fewer, one column of a product needs little, and a thread's
// logits are bounded.

#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include "ggml/attention/attention.h"
#include "ggml/product/product.h"
#include "ggml/top-keys/top-keys.h"

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

static ggml_context_ptr new_context() {
    return ggml_context_ptr { ggml_init({ 64*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true }) };
}

static size_t work_size(ggml_context * ctx, ggml_tensor * t, int n_threads) {
    ggml_cgraph * gf = ggml_new_graph(ctx);
    ggml_build_forward_expand(gf, t);
    return ggml_graph_plan(gf, n_threads, nullptr).work_size;
}

static void check(bool ok, const char * what, int64_t a, int64_t b) {
    if (!ok) {
        fprintf(stderr, "test-work-size: %s, %d, %d\n", what, (int) a, (int) b);
        exit(1);
    }
}

// build(context) makes the operator
template <typename F>
static void check_threads(const char * what, int64_t a, int64_t b, const F & build) {
    size_t fewer = 0;
    for (int n_threads = 1; n_threads <= 40; ++n_threads) {
        const ggml_context_ptr ctx = new_context();

        const size_t size = work_size(ctx.get(), build(ctx.get()), n_threads);
        check(size >= fewer, what, a, b);
        fewer = size;
    }
}

static ggml_tensor * build_product(ggml_context * ctx, int64_t n, int64_t n_rows, int64_t n_columns) {
    ggml_tensor * weights = ggml_new_tensor_2d(ctx, GGML_TYPE_Q8_0, n, n_rows);
    ggml_tensor * res     = ggml_mul_mat(ctx, weights, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, n_columns));
    ggml_h2o_product_hint(res);
    return res;
}

static ggml_tensor * build_attention(ggml_context * ctx, int64_t n_q, int64_t n_k, ggml_h2o_attn_sums sums) {
    ggml_h2o_attn_params params = {};
    params.n_k  = n_k;
    params.sums = sums;

    ggml_tensor * kv = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, 64, n_k, 8);
    return ggml_h2o_attn(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, n_q, 16), kv, kv, &params).o;
}

static ggml_tensor * build_top_keys(ggml_context * ctx, int64_t n_q, int64_t n_k) {
    ggml_tensor * k = ggml_new_tensor_3d(ctx, GGML_TYPE_Q4_0, 64, n_k, 8);
    return ggml_h2o_top_keys(ctx, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, n_q, 16), k, nullptr, 32, 16, 0);
}

int main() {
    for (const int64_t n_rows : { 1, 5, 544, 1000, 4096 }) {
        for (const int64_t n_columns : { 1, 2, 4, 9, 40, 300 }) {
            check_threads("product", n_rows, n_columns, [&](ggml_context * ctx) { return build_product(ctx, 2560, n_rows, n_columns); });
        }
    }
    for (const int64_t n_q : { 1, 30, 1024 }) {
        for (const int64_t n_k : { 100, 5000, 1000000 }) {
            for (const auto sums : { GGML_H2O_ATTN_NO_SUMS, GGML_H2O_ATTN_COLUMN_SUMS, GGML_H2O_ATTN_QUERY_SUMS }) {
                if (sums != GGML_H2O_ATTN_QUERY_SUMS || n_q < 1024) {
                    check_threads("attention", n_q, n_k, [&](ggml_context * ctx) { return build_attention(ctx, n_q, n_k, sums); });
                }
            }
            check_threads("top keys", n_q, n_k, [&](ggml_context * ctx) { return build_top_keys(ctx, n_q, n_k); });
        }
    }

    const auto size_of = [](int n_threads, const auto & build) {
        const ggml_context_ptr ctx = new_context();
        return work_size(ctx.get(), build(ctx.get()), n_threads);
    };
    const size_t column = size_of(8, [](ggml_context * ctx) { return build_product(ctx, 2048, 151936, 1); });
    check(column < 1000000, "one column", column, 0);

    // a thread's logits: with 512 queries a KV head has items for five threads, whatever rows the CPU's kernel takes
    const auto tail = [](ggml_context * ctx) { return build_attention(ctx, 512, 1000000, GGML_H2O_ATTN_COLUMN_SUMS); };
    const size_t thread = size_of(5, tail) - size_of(4, tail);
    check(thread < 150000000, "a thread of attention", thread, 0);
}
