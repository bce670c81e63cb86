#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ops.h"

#include "ggml/product/cpu/columns.h"
#include "ggml/product/cpu/hint.h"
#include "ggml/product/cpu/packed.h"
#include "ggml/work.h"

#include <algorithm>

namespace {

constexpr int64_t DIRECT_ITEMS = 2; // of an expert, where rows are read where they lie

// Columns by the experts that a router chose for each. All columns are rounded once, and grouped by expert; then each group is packed
// and multiplied as in a product with one matrix. An item of work is a run of an expert's rows.
struct experts {
    experts(const ggml_tensor * dst, const h2o_product_kernel & kernel, int n_threads);

    size_t size; // of the work buffer

    void compute(const ggml_compute_params * params) const;

private:
    struct group {
        int64_t first;      // of its columns, of all groups'
        int64_t n_columns;
        int64_t packed;     // offset
        int64_t first_item;
        int64_t item_rows;
    };

    const h2o_product_kernel & kernel;

    const ggml_tensor * weights;
    const ggml_tensor * x;
    const ggml_tensor * ids;
    const ggml_tensor * dst;

    int64_t n_experts, n_used, n_tokens, n_rows, n_blocks;
    size_t  rounded_size; // of a column

    // offsets into the work buffer
    size_t off_groups, off_columns, off_dst, off_packed, off_threads, thread_size;

    int64_t most_packed() const;
    const float * column(int64_t i) const;
    void round_columns(char * rounded, int ith, int nth) const;
    void make_groups(char * work) const;
};

experts::experts(const ggml_tensor * dst, const h2o_product_kernel & kernel, int n_threads)
    : kernel(kernel), weights(dst->src[0]), x(dst->src[1]), ids(dst->src[2]), dst(dst) {
    n_experts   = weights->ne[2];
    n_used      = ids->ne[0];
    n_tokens    = ids->ne[1];
    n_rows      = weights->ne[1];
    n_blocks    = weights->ne[0]/H2O_PRODUCT_BLOCK;
    rounded_size = h2o_rounded_size(kernel, n_blocks);

    const int64_t n = n_used*n_tokens;

    h2o_take take { nullptr };
    take.get<char>(x->ne[1]*n_tokens*rounded_size);
    off_groups  = take.size; take.get<group>(n_experts + 1);
    off_columns = take.size; take.get<const char *>(n);
    off_dst     = take.size; take.get<float *>(n);
    off_packed  = take.size; take.get<char>(most_packed());
    off_threads = take.size;

    // the more columns an expert has, the more it takes
    const size_t most = std::max(h2o_packed(kernel, n, n_blocks).scratch_size(), h2o_packed(kernel, kernel.max_direct + 1, n_blocks).scratch_size());
    thread_size = GGML_PAD(most, 64);
    size        = off_threads + n_threads*thread_size;
}

// Each expert may have a panel that is not full.
int64_t experts::most_packed() const {
    const int64_t    n       = n_used*n_tokens;
    const int64_t    n_busy  = std::min(n_experts, n);
    const h2o_packed one(kernel, 1, n_blocks);
    const h2o_packed panel(kernel, kernel.n_lanes, n_blocks);
    return std::max(n*one.panel_size, (n_busy + n/kernel.n_lanes)*std::max(panel.panel_size, kernel.max_direct*one.panel_size));
}

const float * experts::column(int64_t i) const {
    return (const float *) ((const char *) x->data + i/x->ne[1]*x->nb[2] + i%x->ne[1]*x->nb[1]);
}

void experts::round_columns(char * rounded, int ith, int nth) const {
    const int64_t n = x->ne[1]*n_tokens;
    for (int64_t i = n*ith/nth; i < n*(ith + 1)/nth; ++i) {
        h2o_round_column(kernel, column(i), n_blocks, rounded + i*rounded_size);
    }
}

void experts::make_groups(char * work) const {
    group * groups = (group *) (work + off_groups);

    const auto expert_of = [&](int64_t token, int64_t i) {
        return *(const int32_t *) ((const char *) ids->data + token*ids->nb[1] + i*ids->nb[0]);
    };
    const auto for_each = [&](const auto & f) {
        for (int64_t token = 0; token < n_tokens; ++token) {
            for (int64_t i = 0; i < n_used; ++i) {
                f(token, i, groups[expert_of(token, i)]);
            }
        }
    };

    std::fill(groups, groups + n_experts + 1, group {});
    for_each([](int64_t, int64_t, group & g) { ++g.n_columns; });

    for (int64_t e = 0; e < n_experts; ++e) {
        group & g = groups[e];
        const h2o_packed packed(kernel, g.n_columns, n_blocks);

        const int64_t n = packed.is_direct ? h2o_ceil_div(n_rows, DIRECT_ITEMS) : H2O_PRODUCT_MAX_ROWS;
        g.item_rows = h2o_ceil_div(n, packed.item_step())*packed.item_step();

        groups[e + 1].first      = g.first + g.n_columns;
        groups[e + 1].packed     = g.packed + packed.size();
        groups[e + 1].first_item = g.first_item + (g.n_columns > 0 ? h2o_ceil_div(n_rows, g.item_rows) : 0);
        g.n_columns = 0;
    }

    for_each([&](int64_t token, int64_t i, group & g) {
        const int64_t place = g.first + g.n_columns++;
        const int64_t src   = token*x->ne[1] + i%x->ne[1];
        ((const char **) (work + off_columns))[place] = rounded_size > 0 ? work + src*rounded_size : (const char *) column(src);
        ((float      **) (work + off_dst))    [place] = (float *) ((char *) dst->data + token*dst->nb[2] + i*dst->nb[1]);
    });
}

void experts::compute(const ggml_compute_params * params) const {
    const int ith = params->ith;
    const int nth = params->nth;

    char * work = (char *) GGML_PAD((uintptr_t) params->wdata, 64);

    const group        * groups  = (const group *) (work + off_groups);
    const char * const * columns = (const char **) (work + off_columns);
    float * const      * to      = (float **) (work + off_dst);

    round_columns(work, ith, nth);
    if (ith == 0) {
        make_groups(work);
        ggml_threadpool_chunk_set(params->threadpool, nth);
    }
    ggml_barrier(params->threadpool);

    // panels in turn
    int64_t turn = 0;
    for (int64_t e = 0; e < n_experts; ++e) {
        const h2o_packed packed(kernel, groups[e].n_columns, n_blocks);
        for (int64_t panel = 0; panel < packed.n_panels; ++panel, ++turn) {
            if (turn%nth == ith) {
                packed.pack(columns + groups[e].first + panel*packed.panel_columns, panel, 0, n_blocks, work + off_packed + groups[e].packed);
            }
        }
    }
    ggml_barrier(params->threadpool);

    int64_t e = 0;
    for (int64_t i = ith; i < groups[n_experts].first_item; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        while (i >= groups[e + 1].first_item) {
            ++e;
        }
        const group & g   = groups[e];
        const int64_t row = (i - g.first_item)*g.item_rows;

        h2o_packed(kernel, g.n_columns, n_blocks).multiply(work + off_packed + g.packed,
            (const char *) weights->data + e*weights->nb[2] + row*weights->nb[1], weights->nb[1], std::min(g.item_rows, n_rows - row),
            work + off_threads + ith*thread_size, to + g.first, row);
    }
}

} // namespace

size_t ggml_h2o_experts_work_size(const ggml_tensor * dst, int n_threads) {
    const h2o_product_kernel * kernel = h2o_product_kernel_for(dst);
    return kernel ? experts(dst, *kernel, n_threads).size + 64 : 0;
}

bool ggml_compute_forward_h2o_experts(const ggml_compute_params * params, ggml_tensor * dst) {
    const h2o_product_kernel * kernel = params->use_ref ? nullptr : h2o_product_kernel_for(dst);
    if (!kernel) {
        return false;
    }

    const experts e(dst, *kernel, params->nth);
    GGML_ASSERT(e.size + 64 <= params->wsize && "planned for as many threads or more");
    e.compute(params);
    return true;
}
