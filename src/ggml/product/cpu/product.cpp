#include "ggml-cpu.h"
#include "ops.h"

#include "ggml/product/cpu/packed.h"
#include "ggml/product/kernels/kernels.h"
#include "ggml/product/product.h"
#include "ggml/work.h"

#include <algorithm>

namespace {

constexpr int64_t ITEMS        = 8; // for each thread, fewer with few rows
constexpr int64_t DIRECT_ITEMS = 2; // for each thread, or expert: few, because the first rows of each come late

// Columns that are multiplied by the same matrix: all, or those for which a router chose this expert.
struct group {
    int64_t first_column;
    int64_t n_columns;
    int64_t offset; // of its packed columns
    int64_t first_panel;
    int64_t first_item;
    int64_t item_rows;
};

// A product with a matrix, or with the matrices of experts. Columns are packed once, group by group. An item of work is
// a run of a matrix's rows, multiplied by all columns of the group. A sum is taken block after block, so it depends
// only on its row and its column.
struct product {
    product(const ggml_tensor * dst, const h2o_product_kernel & kernel);

    // a thread's
    struct scratch {
        group        * groups;
        const float ** columns;
        float       ** dst;  // the results of each column
        char         * rows; // rounded columns of a panel, then unpacked rows
    };

    // all threads': packed columns
    char *  get_shared (h2o_take & arena) const { return arena.get<char>(packed_size); }
    scratch get_scratch(h2o_take & arena) const;

    void compute(const ggml_compute_params * params, char * work, const scratch & t) const;

private:

    const h2o_product_kernel & kernel;

    const ggml_tensor * weights;
    const ggml_tensor * x;
    const ggml_tensor * ids; // of the experts, or NULL
    const ggml_tensor * dst;

    int64_t n_groups;
    int64_t n_tokens, n_used; // experts of a token; without experts, one token has all columns
    int64_t n_columns, n_rows, n_blocks;
    size_t  packed_size, rows_size; // bytes

    h2o_packed packed(const group & g) const { return { kernel, g.n_columns, n_blocks }; }
    bool is_rounded() const { return kernel.column_block == H2O_PRODUCT_Q8_0_BYTES; }

    void make_groups(const scratch & t, int nth) const;
    void prefetch(const group & g, int64_t item) const;
    void pack(const scratch & t, char * work, int ith, int nth) const;
};

product::product(const ggml_tensor * dst, const h2o_product_kernel & kernel)
    : kernel(kernel), weights(dst->src[0]), x(dst->src[1]), ids(dst->src[2]), dst(dst) {
    n_groups  = weights->ne[2];
    n_tokens  = ids ? ids->ne[1] : 1;
    n_used    = ids ? ids->ne[0] : x->ne[1];
    n_columns = n_tokens*n_used;
    n_rows    = weights->ne[1];
    n_blocks  = weights->ne[0]/H2O_PRODUCT_BLOCK;

    // each group may have a panel that is not full
    const h2o_packed single(kernel, 1, n_blocks);
    const int64_t panel  = h2o_ceil_div(n_blocks*kernel.panel_block, 64)*64;
    const int64_t column = std::max(single.is_direct ? single.panel_size : 0, h2o_ceil_div(panel, kernel.n_lanes));
    packed_size = h2o_ceil_div(n_columns*column, 64)*64 + std::min(n_groups, n_columns)*panel;

    const size_t rounded = is_rounded() ? kernel.n_lanes*n_blocks*kernel.column_block : 0;
    rows_size = std::max(rounded, h2o_packed(kernel, n_columns, n_blocks).scratch_size()); // grows with the columns
}

product::scratch product::get_scratch(h2o_take & arena) const {
    scratch t;
    t.groups  = arena.get<group>(n_groups + 1);
    t.columns = arena.get<const float *>(n_columns);
    t.dst     = arena.get<float *>(n_columns);
    t.rows    = arena.get<char>(rows_size);
    return t;
}

// Every thread makes its own groups, which takes less time than waiting for another thread.
void product::make_groups(const scratch & t, int nth) const {
    const auto for_each = [&](const auto & f) {
        for (int64_t token = 0; token < n_tokens; ++token) {
            for (int64_t i = 0; i < n_used; ++i) {
                const char * id = ids ? (const char *) ids->data + token*ids->nb[1] + i*ids->nb[0] : nullptr;
                f(token, i, t.groups[id ? *(const int32_t *) id : 0]);
            }
        }
    };

    std::fill(t.groups, t.groups + n_groups + 1, group {});
    for_each([](int64_t, int64_t, group & g) { ++g.n_columns; });

    for (group * g = t.groups; g < t.groups + n_groups; ++g) {
        const h2o_packed p = packed(*g);

        const int64_t n_items = ids ? DIRECT_ITEMS : nth*(p.is_direct ? DIRECT_ITEMS : ITEMS);
        const int64_t n       = std::min<int64_t>(h2o_ceil_div(n_rows, n_items), p.is_direct ? n_rows : kernel.max_rows);
        g->item_rows = h2o_ceil_div(n, p.item_step())*p.item_step();

        g[1].first_column = g->first_column + g->n_columns;
        g[1].offset       = g->offset + p.size();
        g[1].first_panel  = g->first_panel + p.n_panels;
        g[1].first_item   = g->first_item + (g->n_columns > 0 ? h2o_ceil_div(n_rows, g->item_rows) : 0);
        g->n_columns = 0;
    }

    for_each([&](int64_t token, int64_t i, group & g) {
        const int64_t column = g.first_column + g.n_columns++;
        t.columns[column] = (const float *) ((const char *) x->data + token*x->nb[2] + i%x->ne[1]*x->nb[1]);
        t.dst    [column] = (float *) ((char *) dst->data + token*dst->nb[2] + i*dst->nb[1]);
    });
}

// The item's first rows, which nothing else asks for in time.
void product::prefetch(const group & g, int64_t item) const {
    __asm__ volatile (""); // GCC leaves out a call that has no effect
    const char * first = (const char *) weights->data + item*g.item_rows*weights->nb[1];
    const char * end   = std::min(first + H2O_PRODUCT_AHEAD, (const char *) weights->data + n_rows*weights->nb[1]);
    for (const char * line = first; line < end; line += 64) {
        __builtin_prefetch(line, 0, 3);
    }
}

// A thread's share of the blocks of all panels.
void product::pack(const scratch & t, char * work, int ith, int nth) const {
    const auto    round = ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float;
    const int64_t all   = t.groups[n_groups].first_panel*n_blocks;
    const int64_t end   = all*(ith + 1)/nth;

    const group * g = t.groups;
    for (int64_t i = all*ith/nth, n; i < end; i += n) {
        while (i/n_blocks >= g[1].first_panel) {
            ++g;
        }
        const h2o_packed p = packed(*g);

        const int64_t panel = i/n_blocks - g->first_panel;
        const int64_t block = i%n_blocks;
        const int64_t first = panel*p.panel_columns;
        n = std::min(n_blocks - block, end - i);

        const char * columns[64];
        for (int64_t j = 0; j < std::min(p.panel_columns, g->n_columns - first); ++j) {
            const float * column = t.columns[g->first_column + first + j] + block*H2O_PRODUCT_BLOCK;
            columns[j] = (const char *) column;
            if (is_rounded()) {
                char * rounded = t.rows + j*n*kernel.column_block;
                round(column, rounded, n*H2O_PRODUCT_BLOCK);
                columns[j] = rounded;
            }
        }
        p.pack(columns, panel, block, n, work + g->offset);
    }
}

void product::compute(const ggml_compute_params * params, char * work, const scratch & t) const {
    make_groups(t, params->nth);
    if (!ids && packed(*t.groups).is_direct) {
        prefetch(*t.groups, params->ith);
    }
    pack(t, work, params->ith, params->nth);

    const group * g = t.groups;
    h2o_for_items(params, t.groups[n_groups].first_item, [&](int64_t i) {
        while (i >= g[1].first_item) {
            ++g;
        }
        const int64_t row  = (i - g->first_item)*g->item_rows;
        const char  * rows = (const char *) weights->data + (g - t.groups)*weights->nb[2] + row*weights->nb[1];

        packed(*g).multiply(work + g->offset, rows, weights->nb[1], std::min(g->item_rows, n_rows - row),
            t.rows, t.dst + g->first_column, row);
    });
}

// NULL if upstream is to multiply.
const h2o_product_kernel * kernel_for(const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * x       = dst->src[1];

    const bool has_experts = dst->op == GGML_OP_MUL_MAT_ID;
    const bool fits = ggml_h2o_product_has_hint(dst) && x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) &&
        x->ne[3] == 1 && (has_experts || x->ne[2] == 1) && x->ne[0]%H2O_PRODUCT_BLOCK == 0;

    const int64_t n_columns = has_experts ? dst->ne[1]*dst->ne[2]/weights->ne[2] : dst->ne[1];
    return fits ? h2o_product_kernel_in_use(weights->type, n_columns) : nullptr;
}

} // namespace

size_t ggml_h2o_product_work_size(const ggml_tensor * dst, int n_threads) {
    const h2o_product_kernel * kernel = kernel_for(dst);
    return kernel ? h2o_work_size(product(dst, *kernel), n_threads) : 0;
}

bool ggml_compute_forward_h2o_product(const ggml_compute_params * params, ggml_tensor * dst) {
    const h2o_product_kernel * kernel = params->use_ref ? nullptr : kernel_for(dst);
    if (kernel) {
        h2o_compute(product(dst, *kernel), params);
    }
    return kernel;
}
