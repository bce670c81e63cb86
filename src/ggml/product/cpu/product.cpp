#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ops.h"

#include "ggml/product/product.h"
#include "ggml/product/kernels/kernels.h"
#include "ggml/work.h"

#include <algorithm>

namespace {

constexpr int64_t MAX_ROWS     = 64; // of weights in an item of work, unless there are few columns
constexpr int64_t ITEMS        = 8;  // for each thread, or fewer rows
constexpr int64_t DIRECT_ITEMS = 2;  // long ones: the first rows of each come from memory late
constexpr int64_t SLICE_BLOCKS = 64; // of rows and columns that are multiplied at once: in the L2 cache

int64_t round_rows(int64_t n) {
    return h2o_ceil_div(n, H2O_PRODUCT_ROWS)*H2O_PRODUCT_ROWS;
}

// Columns are packed once; few of them in a way of their own. An item of work is a run of rows for all columns; a thread unpacks them,
// or multiplies few columns by them where they lie. The sum of a row and a column is taken block after block: it depends on nothing else.
struct product {
    product(const ggml_tensor * dst, const h2o_product_kernel & kernel, int n_threads);

    size_t size; // of the work buffer

    void compute(const ggml_compute_params * params) const;

private:
    const h2o_product_kernel & kernel;

    const ggml_tensor * weights;
    const ggml_tensor * x;
    const ggml_tensor * dst;

    int64_t n_columns, n_panels, n_rows, n_blocks;

    bool    is_direct;     // by rows where they lie
    int     spread;        // lanes for each column
    int64_t panel_columns;
    int64_t panel_size;    // bytes, of a column if these are few

    int64_t item_rows;
    int64_t step_rows;     // that are unpacked at once
    int64_t slice;         // blocks

    // offsets into the work buffer; a thread has quantized columns, then unpacked rows in the same place, and sums
    size_t off_thread, off_sums, thread_size;

    void prefetch(int64_t item) const;
    void pack(char * work, char * quantized, int ith, int nth) const;
    void multiply(const char * work, char * rows, float * sums, int64_t first, int64_t n) const;
};

product::product(const ggml_tensor * dst, const h2o_product_kernel & kernel, int n_threads)
    : kernel(kernel), weights(dst->src[0]), x(dst->src[1]), dst(dst) {
    n_columns = x->ne[1];
    n_rows    = weights->ne[1];
    n_blocks  = weights->ne[0]/H2O_PRODUCT_BLOCK;

    is_direct     = n_columns <= kernel.max_direct;
    spread        = n_columns <= kernel.n_lanes/4 ? 4 : n_columns <= kernel.n_lanes/2 ? 2 : 1;
    panel_columns = is_direct ? 1 : kernel.n_lanes/spread;
    n_panels      = h2o_ceil_div(n_columns, panel_columns);

    const int64_t n_items  = n_threads*(is_direct ? DIRECT_ITEMS : ITEMS);
    const int64_t max_rows = is_direct ? n_rows : MAX_ROWS;
    item_rows = round_rows(std::min(h2o_ceil_div(n_rows, n_items), max_rows));
    // with few columns what is unpacked is used little, and stays in the L1 cache
    step_rows = n_panels <= 2 && !is_direct ? H2O_PRODUCT_ROWS : item_rows;
    slice     = std::min(n_blocks, SLICE_BLOCKS);

    panel_size = is_direct ? GGML_PAD(kernel.column_bytes(n_blocks), 64) : n_blocks*kernel.panel_block;

    // fewer threads, which have larger items, fit into what was planned
    const int64_t max_step    = is_direct ? 0 : n_panels <= 2 ? H2O_PRODUCT_ROWS : round_rows(std::min(n_rows, MAX_ROWS));
    const int64_t n_quantized = panel_columns*n_blocks*H2O_PRODUCT_BLOCK_BYTES;
    const int64_t n_unpacked  = max_step/H2O_PRODUCT_ROWS*slice*kernel.rows_block;
    const int64_t n_sums      = slice < n_blocks ? n_panels*max_step*kernel.n_lanes*(int64_t) sizeof(float) : 0;

    off_thread  = GGML_PAD(n_panels*panel_size, 64);
    off_sums    = GGML_PAD(std::max(n_quantized, n_unpacked), 64);
    thread_size = off_sums + GGML_PAD(n_sums, 64);
    size        = off_thread + n_threads*thread_size;
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
void product::pack(char * work, char * quantized, int ith, int nth) const {
    const auto quantize = ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float;

    const int64_t end = n_panels*n_blocks*(ith + 1)/nth;
    for (int64_t i = n_panels*n_blocks*ith/nth; i < end;) {
        const int64_t panel  = i/n_blocks;
        const int64_t block  = i%n_blocks;
        const int64_t n      = std::min(n_blocks - block, end - i);
        const int64_t column = panel*panel_columns;
        const int64_t n_cols = std::min(panel_columns, n_columns - column);
        const int64_t stride = n*H2O_PRODUCT_BLOCK_BYTES;

        for (int64_t j = 0; j < n_cols; ++j) {
            const float * src = (const float *) ((const char *) x->data + (column + j)*x->nb[1]) + block*H2O_PRODUCT_BLOCK;
            quantize(src, quantized + j*stride, n*H2O_PRODUCT_BLOCK);
        }
        char * dst = work + panel*panel_size;
        if (is_direct) {
            kernel.pack_column(quantized, block, n, n_blocks, dst);
        } else {
            kernel.pack_columns(quantized, stride, n_cols, spread, n, dst + block*kernel.panel_block);
        }
        i += n;
    }
}

// n rows by all columns
void product::multiply(const char * work, char * rows, float * sums, int64_t first, int64_t n) const {
    const char * src = (const char *) weights->data + first*weights->nb[1];
    float      * out = (float *) dst->data + first;
    const int64_t ld = dst->nb[1]/sizeof(float);
    if (is_direct) {
        return kernel.multiply_direct({ src, (int64_t) weights->nb[1], n, work, panel_size, n_columns, n_blocks, out, ld });
    }

    h2o_product_slice s;
    s.rows         = rows;
    s.n_rows       = n;
    s.panel_stride = panel_size;
    s.n_columns    = n_columns;
    s.spread       = spread;
    s.sums         = sums;
    s.dst          = out;
    s.ld           = ld;

    for (int64_t block = 0; block < n_blocks; block += slice) {
        s.panels   = work + block*kernel.panel_block;
        s.n_blocks = std::min(slice, n_blocks - block);
        s.is_first = block == 0;
        s.is_last  = block + s.n_blocks == n_blocks;

        for (int64_t i = 0; i < n; i += H2O_PRODUCT_ROWS) {
            kernel.unpack_rows(src + i*weights->nb[1] + block/kernel.unit_blocks*kernel.unit_bytes, weights->nb[1],
                std::min<int64_t>(H2O_PRODUCT_ROWS, n - i), s.n_blocks, rows + i/H2O_PRODUCT_ROWS*s.n_blocks*kernel.rows_block);
        }
        kernel.multiply(s);
    }
}

void product::compute(const ggml_compute_params * params) const {
    const int ith = params->ith;
    const int nth = params->nth;

    char * work   = (char *) GGML_PAD((uintptr_t) params->wdata, 64);
    char * thread = work + off_thread + ith*thread_size;

    if (ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, nth);
    }
    if (is_direct) {
        prefetch(ith);
    }
    pack(work, thread, ith, nth);

    ggml_barrier(params->threadpool);

    const int64_t n_items = h2o_ceil_div(n_rows, item_rows);
    for (int64_t i = ith; i < n_items; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t end = std::min(n_rows, (i + 1)*item_rows);
        for (int64_t row = i*item_rows; row < end; row += step_rows) {
            multiply(work, thread, (float *) (thread + off_sums), row, std::min(step_rows, end - row));
        }
    }
}

// NULL if upstream is to multiply
const h2o_product_kernel * kernel_for(const ggml_tensor * dst) {
    const ggml_tensor * weights = dst->src[0];
    const ggml_tensor * x       = dst->src[1];

    const bool fits = ggml_h2o_product_has_hint(dst) && x->type == GGML_TYPE_F32 &&
        x->nb[0] == sizeof(float) && x->ne[2] == 1 && x->ne[3] == 1;
    return fits ? h2o_product_kernel_in_use(weights->type) : nullptr;
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
