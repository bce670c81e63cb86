#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ops.h"

#include "ggml/product/cpu/columns.h"
#include "ggml/product/cpu/hint.h"
#include "ggml/product/cpu/packed.h"
#include "ggml/work.h"

#include <algorithm>

namespace {

constexpr int64_t ITEMS        = 8;  // for each thread, or fewer rows
constexpr int64_t DIRECT_ITEMS = 2;  // long ones: the first rows of each come from memory late

// Columns are packed once. An item of work is a run of rows for all columns; a thread unpacks them, or multiplies few columns by them
// where they lie. The sum of a row and a column is taken block after block: it depends on nothing else.
struct product {
    product(const ggml_tensor * dst, const h2o_product_kernel & kernel, int n_threads);

    size_t size; // of the work buffer

    void compute(const ggml_compute_params * params) const;

private:
    const ggml_tensor * weights;
    const ggml_tensor * x;
    const ggml_tensor * dst;

    h2o_packed columns;
    int64_t    n_rows;
    int64_t    item_rows;

    // a thread's part of the work buffer: where each column's results go, then a panel's rounded columns, or unpacked rows
    size_t off_scratch, thread_size;

    void prefetch(int64_t item) const;
    void pack(char * work, char * rounded, int ith, int nth) const;
};

product::product(const ggml_tensor * dst, const h2o_product_kernel & kernel, int n_threads)
    : weights(dst->src[0]), x(dst->src[1]), dst(dst), columns(kernel, x->ne[1], x->ne[0]/H2O_PRODUCT_BLOCK), n_rows(weights->ne[1]) {
    const int64_t n_items = n_threads*(columns.is_direct ? DIRECT_ITEMS : ITEMS);
    const int64_t n       = std::min(h2o_ceil_div(n_rows, n_items), columns.is_direct ? n_rows : H2O_PRODUCT_MAX_ROWS);
    item_rows = h2o_ceil_div(n, columns.item_step())*columns.item_step();

    const size_t n_rounded = columns.panel_columns*h2o_rounded_size(kernel, columns.n_blocks);

    off_scratch = GGML_PAD(columns.n_columns*sizeof(float *), 64);
    thread_size = off_scratch + GGML_PAD(std::max(n_rounded, columns.scratch_size()), 64);
    size        = columns.size() + n_threads*thread_size;
}

// The item's first rows, which nothing else asks for in time.
void product::prefetch(int64_t item) const {
    __asm__ volatile (""); // GCC leaves out a call that has no effect
    const char * first = (const char *) weights->data + item*item_rows*weights->nb[1];
    const char * end   = std::min(first + H2O_PRODUCT_AHEAD, (const char *) weights->data + n_rows*weights->nb[1]);
    for (const char * line = first; line < end; line += 64) {
        __builtin_prefetch(line, 0, 3);
    }
}

// A thread's share of all blocks of all panels.
void product::pack(char * work, char * rounded, int ith, int nth) const {
    const int64_t n_blocks = columns.n_blocks;

    const int64_t end = columns.n_panels*n_blocks*(ith + 1)/nth;
    for (int64_t i = columns.n_panels*n_blocks*ith/nth; i < end;) {
        const int64_t panel  = i/n_blocks;
        const int64_t block  = i%n_blocks;
        const int64_t n      = std::min(n_blocks - block, end - i);
        const int64_t first  = panel*columns.panel_columns;
        const int64_t n_cols = std::min(columns.panel_columns, columns.n_columns - first);

        const char * column[64];
        for (int64_t j = 0; j < n_cols; ++j) {
            const float * src = (const float *) ((const char *) x->data + (first + j)*x->nb[1]) + block*H2O_PRODUCT_BLOCK;
            column[j] = h2o_round_column(columns.kernel, src, n, rounded + j*h2o_rounded_size(columns.kernel, n));
        }
        columns.pack(column, panel, block, n, work);
        i += n;
    }
}

void product::compute(const ggml_compute_params * params) const {
    const int ith = params->ith;
    const int nth = params->nth;

    char   * work    = (char *) GGML_PAD((uintptr_t) params->wdata, 64);
    char   * thread  = work + columns.size() + ith*thread_size;
    char   * scratch = thread + off_scratch;
    float ** to      = (float **) thread;

    if (ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, nth);
    }
    if (columns.is_direct) {
        prefetch(ith);
    }
    for (int64_t j = 0; j < columns.n_columns; ++j) {
        to[j] = (float *) ((char *) dst->data + j*dst->nb[1]);
    }
    pack(work, scratch, ith, nth);

    ggml_barrier(params->threadpool);

    const int64_t n_items = h2o_ceil_div(n_rows, item_rows);
    for (int64_t i = ith; i < n_items; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t row = i*item_rows;
        columns.multiply(work, (const char *) weights->data + row*weights->nb[1], weights->nb[1], std::min(item_rows, n_rows - row),
            scratch, to, row);
    }
}

const h2o_product_kernel * kernel_for(const ggml_tensor * dst) {
    return dst->src[1]->ne[2] == 1 ? h2o_product_kernel_for(dst) : nullptr;
}

} // namespace

size_t ggml_h2o_product_work_size(const ggml_tensor * dst, int n_threads) {
    const h2o_product_kernel * kernel = kernel_for(dst);
    return kernel ? product(dst, *kernel, n_threads).size + 64 : 0;
}

bool ggml_compute_forward_h2o_product(const ggml_compute_params * params, ggml_tensor * dst) {
    const h2o_product_kernel * kernel = params->use_ref ? nullptr : kernel_for(dst);
    if (!kernel) {
        return false;
    }

    const product p(dst, *kernel, params->nth);
    GGML_ASSERT(p.size + 64 <= params->wsize && "planned for as many threads or more");
    p.compute(params);
    return true;
}
