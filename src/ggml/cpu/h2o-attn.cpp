#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ops.h"

#include "ggml-h2o-attn.h"
#include "h2o-attn-isa.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

// One KV head's keys and values, in float32 or split, are packed once per block of queries. Its rows (query, head of the
// group) are cut into tiles, whose logits stay in the L2 cache unless keys are many. Runs of tiles are the items of work: each
// item has column sums of its own, added up in order at the end. None of this depends on the number of threads.
//
// Where queries have further rows by tiles ("lookups" here, as the kernel's tiles are others), kernel tiles end where lookups
// do, and an item is made of whole lookups, or of a part of one where lookups are few. It gathers and packs a lookup's keys
// for itself.
//
// With many keys, the KV heads are computed in rounds, which share the room for packed keys and values.

namespace {

constexpr int64_t MAX_ITEMS  = 256;         // at least one for each KV head
constexpr int64_t MIN_ITEMS  = 32;          // with lookups, if there are so many tiles
constexpr int64_t MAX_PACKED = 8*1024*1024; // floats of packed K and V, unless one KV head takes more

// largest |x| of some keys and values; NaN if there is one
struct peaks {
    float k;
    float v;

    void add(const peaks & other) {
        k = other.k > k || std::isnan(other.k) ? other.k : k;
        v = other.v > v || std::isnan(other.v) ? other.v : v;
    }
};

// Further keys of a lookup's queries: without those that the KV head has anyway.
struct lookup_keys {
    int64_t   n;
    int32_t * rows;
    int32_t * first;
    float   * k; // packed
    float   * v; // packed
    peaks     max;

    // the first ones, those that the query sees
    int64_t n_visible(int64_t i) const { return std::upper_bound(first, first + n, i) - first; }
};

// a thread's scratch
struct scratch_space {
    float * rows; // to be packed, while there is no tile
    float * q;
    float * split;
    float * o;
    float * m;
    float * l;
    float * logits;

    lookup_keys keys;
};

struct attn {
    attn(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads);

    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;
    const ggml_tensor * rows;
    const int32_t     * first;  // [n_k] or NULL
    const ggml_tensor * limits; // or NULL
    const int32_t     * lookup_rows;  // [n_lookups][n_lookup_rows] or NULL
    const int32_t     * lookup_first; // likewise
    const h2o_attn_kernel & kernel;

    float scale;
    bool  has_sums;

    int64_t d_k, d_v, n_q, n_head, n_head_kv, n_block, n_k;
    int64_t d_k_pad, d_v_pad, n_k_pad;
    int64_t group;   // query heads of a KV head
    int64_t n_lookups, lookup_size, lookup_offset, n_lookup_rows, n_lookup_pad;
    int64_t n_runs;  // of lookups
    int64_t n_parts; // of a lookup
    int64_t n_items; // of a KV head: runs, or parts of lookups
    int64_t n_units; // of H2O_ATTN_KEYS keys, of a KV head
    int64_t n_round; // KV heads at once
    int64_t ld;      // of a tile's logits

    // results
    float * o;
    float * sums;
    float * m;
    float * l;

    // offsets into the work buffer, in floats
    int64_t off_k, off_v, off_peaks, off_sums, off_thread, thread_size, size;

    // the work buffer; [n_round] of each
    float * packed_k  (float * work, int64_t h) const { return work + off_k + h%n_round*n_k_pad*d_k_pad; }
    float * packed_v  (float * work, int64_t h) const { return work + off_v + h%n_round*n_k_pad*d_v_pad; }
    peaks * unit_peaks(float * work, int64_t h) const { return (peaks *) (work + off_peaks) + h%n_round*n_units; }
    float * item_sums (float * work, int64_t h, int64_t item) const { return work + off_sums + (h%n_round*n_items + item)*n_k_pad; }

    // the first keys, those that the row sees
    int64_t n_visible(int64_t row) const { return first ? std::upper_bound(first, first + n_k, row/group) - first : n_k; }

    // the first keys, those whose sums count the row
    int64_t n_counted(int64_t row, int64_t h, int64_t block) const {
        if (!limits) {
            return n_k_pad;
        }
        const int32_t * idx = rows_of(h, block);
        return std::upper_bound(idx, idx + n_k, ((const int32_t *) limits->data)[block*n_q + row/group]) - idx;
    }

    const int32_t * rows_of(int64_t h, int64_t block) const {
        return (const int32_t *) ((const char *) rows->data + h*rows->nb[1] + block*rows->nb[2]);
    }

    scratch_space thread_scratch(float * work, int ith) const;

    peaks pack_keys(float * scratch, int64_t h, const int32_t * idx, int64_t key, int64_t n, int64_t n_pad, float * k, float * v) const;
    void pack(float * work, float * scratch, int64_t h, int64_t unit, int64_t block) const;
    void gather_lookup(scratch_space & scratch, int64_t h, int64_t lookup, int64_t end) const;
    void compute_tile(float * work, const scratch_space & scratch, int64_t h, int64_t row, int64_t n, int64_t block, const peaks & max, float * sums) const;
    void compute_item(float * work, scratch_space & scratch, int64_t h, int64_t item, int64_t block) const;
    void add_sums(float * work, int64_t h, int64_t block, int64_t start, int64_t end) const;
};

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1)/b;
}

attn::attn(const ggml_tensor * dst, const h2o_attn_kernel & kernel, int n_threads)
    : q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), rows(dst->src[3]),
      first(dst->src[4] ? (const int32_t *) dst->src[4]->data : nullptr), limits(dst->src[5]),
      lookup_rows (dst->src[6] ? (const int32_t *) dst->src[6]->data : nullptr),
      lookup_first(dst->src[7] ? (const int32_t *) dst->src[7]->data : nullptr), kernel(kernel) {
    scale    = ggml_get_op_params_f32(dst, 0);
    has_sums = ggml_get_op_params_i32(dst, 1);

    d_k       = q->ne[0];
    n_q       = q->ne[1];
    n_head    = q->ne[2];
    n_block   = q->ne[3];
    d_v       = v->ne[0];
    n_k       = rows->ne[0];
    n_head_kv = rows->ne[1];

    d_k_pad = h2o_attn_pad(d_k);
    d_v_pad = h2o_attn_pad(d_v);
    n_k_pad = h2o_attn_pad(n_k);

    group   = n_head/n_head_kv;
    n_units = n_k_pad/H2O_ATTN_KEYS;

    const int64_t max_items = std::max<int64_t>(MAX_ITEMS/n_head_kv, 1);

    if (const ggml_tensor * lookups = dst->src[6]) {
        n_lookup_rows = lookups->ne[0];
        n_lookups     = lookups->ne[1];
        lookup_size   = ggml_get_op_params_i32(dst, 2);
        lookup_offset = ggml_get_op_params_i32(dst, 3);

        n_runs  = std::min(n_lookups, max_items);
        n_parts = ceil_div(MIN_ITEMS, n_runs*n_head_kv);
    } else { // one without rows
        n_lookup_rows = 0;
        n_lookups     = 1;
        lookup_size   = n_q;
        lookup_offset = 0;

        n_runs  = 1;
        n_parts = max_items;
    }
    n_lookup_pad = h2o_attn_pad(n_lookup_rows);
    n_parts      = std::min(n_parts, ceil_div(std::min(lookup_size, n_q)*group, kernel.n_rows));
    n_items      = n_runs*n_parts;

    // at least one item for each thread
    n_round = std::max(MAX_PACKED/(n_k_pad*(d_k_pad + d_v_pad)), ceil_div(n_threads, n_items));
    n_round = std::min(n_round, n_head_kv);

    // an odd multiple of 32 floats: rows spread over the sets of the L1 cache
    ld = ceil_div(n_k_pad + n_lookup_pad, 64)*64 + 32;

    o    = (float *) dst->data;
    sums = o    + d_v*n_head*n_q*n_block;
    m    = sums + (has_sums ? n_k*n_head_kv*n_block : 0);
    l    = m    + n_q*n_head*n_block;

    const auto place = [this](int64_t n) {
        const int64_t offset = size;
        size += ceil_div(n, 16)*16; // cache lines
        return offset;
    };

    size = 0;
    off_k     = place(n_round*n_k_pad*d_k_pad);
    off_v     = place(n_round*n_k_pad*d_v_pad);
    off_peaks = place(n_round*n_units*2);
    off_sums  = place(has_sums ? n_round*n_items*n_k_pad : 0);

    off_thread  = size;
    thread_size = H2O_ATTN_MAX_ROWS*(2*d_k_pad + d_v_pad + 2 + ld) + n_lookup_pad*(d_k_pad + d_v_pad + 2);
    place(n_threads*thread_size);
}

scratch_space attn::thread_scratch(float * work, int ith) const {
    float * next = work + off_thread + ith*thread_size;

    const auto take = [&next](int64_t n) {
        float * res = next;
        next += n;
        return res;
    };

    scratch_space res;
    res.q      = take(H2O_ATTN_MAX_ROWS*d_k_pad);
    res.split  = take(H2O_ATTN_MAX_ROWS*d_k_pad);
    res.o      = take(H2O_ATTN_MAX_ROWS*d_v_pad);
    res.m      = take(H2O_ATTN_MAX_ROWS);
    res.l      = take(H2O_ATTN_MAX_ROWS);
    res.logits = take(H2O_ATTN_MAX_ROWS*ld);
    res.rows   = res.q; // H2O_ATTN_KEYS of them

    res.keys.n     = 0;
    res.keys.k     = take(n_lookup_pad*d_k_pad);
    res.keys.v     = take(n_lookup_pad*d_v_pad);
    res.keys.rows  = (int32_t *) take(n_lookup_pad);
    res.keys.first = (int32_t *) take(n_lookup_pad);
    res.keys.max   = { 0.0f, 0.0f };

    return res;
}

void row_to_float(const ggml_tensor * t, int64_t row, int64_t head, float * dst) {
    const char *  src = (const char *) t->data + row*t->nb[1] + head*t->nb[2];
    const int64_t n   = t->ne[0];

    switch (t->type) {
        case GGML_TYPE_F32:
            memcpy(dst, src, n*sizeof(float));
            break;
        case GGML_TYPE_F16:
            ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) src, dst, n);
            break;
        case GGML_TYPE_BF16:
            ggml_cpu_bf16_to_fp32((const ggml_bf16_t *) src, dst, n);
            break;
        default:
            ggml_get_type_traits(t->type)->to_float(src, dst, n);
    }
}

// Asks for a row that is read soon: rows by index are more than the CPU foresees.
void prefetch_row(const ggml_tensor * t, int64_t row, int64_t head) {
    const char *  src = (const char *) t->data + row*t->nb[1] + head*t->nb[2];
    const int64_t n   = ggml_row_size(t->type, t->ne[0]);

    for (int64_t i = 0; i < n; i += 64) {
        __builtin_prefetch(src + i);
    }
}

// largest |x|, NaN if there is one: without their sign, floats are ordered like integers, and NaN comes last
float peak(const float * x, int64_t n) {
    int32_t max = 0;
    for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        max = std::max(max, bits & INT32_MAX);
    }
    float res;
    memcpy(&res, &max, sizeof(res));
    return res;
}

// Packs up to H2O_ATTN_KEYS of n keys, from the key-th on.
peaks attn::pack_keys(float * scratch, int64_t h, const int32_t * idx, int64_t key, int64_t n, int64_t n_pad, float * k, float * v) const {
    n = std::min<int64_t>(H2O_ATTN_KEYS, n - key);

    const auto pack_rows = [&](const ggml_tensor * t, void (*pack)(const float *, int64_t, int64_t, int64_t, void *), float * packed) {
        const int64_t d = t->ne[0];
        for (int64_t i = 0; i < n; ++i) {
            row_to_float(t, idx[key + i], h, scratch + i*d);
        }
        std::fill(scratch + n*d, scratch + H2O_ATTN_KEYS*d, 0.0f);
        pack(scratch, d, key, n_pad, packed);

        return peak(scratch, n*d);
    };

    return {
        pack_rows(this->k, kernel.pack_k, k),
        pack_rows(this->v, kernel.pack_v, v),
    };
}

void attn::pack(float * work, float * scratch, int64_t h, int64_t unit, int64_t block) const {
    unit_peaks(work, h)[unit] = pack_keys(scratch, h, rows_of(h, block), unit*H2O_ATTN_KEYS, n_k, n_k_pad, packed_k(work, h), packed_v(work, h));
}

// What queries before the end see of a lookup.
void attn::gather_lookup(scratch_space & scratch, int64_t h, int64_t lookup, int64_t end) const {
    const int32_t * head_rows = rows_of(h, 0);
    const int32_t * rows      = lookup_rows  + lookup*n_lookup_rows;
    const int32_t * first     = lookup_first + lookup*n_lookup_rows;

    lookup_keys & keys = scratch.keys;

    keys.n = 0;
    for (int64_t i = 0; i < n_lookup_rows && first[i] < end; ++i) {
        if (!std::binary_search(head_rows, head_rows + n_k, rows[i])) {
            keys.rows [keys.n] = rows [i];
            keys.first[keys.n] = first[i];
            ++keys.n;
            prefetch_row(k, rows[i], h);
            prefetch_row(v, rows[i], h);
        }
    }

    keys.max = { 0.0f, 0.0f };
    for (int64_t key = 0; key < keys.n; key += H2O_ATTN_KEYS) {
        keys.max.add(pack_keys(scratch.rows, h, keys.rows, key, keys.n, h2o_attn_pad(keys.n), keys.k, keys.v));
    }
}

// The same as a kernel's tile, for numbers that are not finite or large enough to overflow.
void plain_tile(const attn & a, const h2o_attn_tile & t, int64_t h, const int32_t * rows, const int32_t * rows2, const float * const * q) {
    struct columns {
        const int32_t * rows;
        const int64_t * visible;
        float         * logits;
    };
    const columns parts[] = { { rows, t.visible, t.logits }, { rows2, t.visible2, t.logits + t.n_k } };

    std::vector<float> row(std::max(a.d_k, a.d_v));

    for (const columns & part : parts) {
        for (int64_t j = 0; j < part.visible[t.n_rows - 1]; ++j) {
            row_to_float(a.k, part.rows[j], h, row.data());
            for (int r = 0; r < t.n_rows; ++r) {
                float dot = 0.0f;
                for (int64_t i = 0; i < a.d_k; ++i) {
                    dot += q[r][i]*row[i];
                }
                part.logits[r*t.ld + j] = a.scale*dot;
            }
        }
    }

    for (int r = 0; r < t.n_rows; ++r) {
        // f(logit) for all that the row sees
        const auto for_visible = [&](const auto & f) {
            for (const columns & part : parts) {
                for (int64_t j = 0; j < part.visible[r]; ++j) {
                    f(part.logits[r*t.ld + j]);
                }
            }
        };

        float max = -INFINITY;
        for_visible([&](float x) { max = x > max || std::isnan(x) ? x : max; });

        float sum = 0.0f;
        for_visible([&](float & x) {
            x = max == -INFINITY ? 0.0f : expf(x - max);
            sum += x;
        });
        for_visible([&](float & x) { x = max == -INFINITY ? 0.0f : x/sum; });

        for (int64_t j = 0; t.sums && j < std::min(t.visible[r], t.counted[r]); ++j) {
            t.sums[j] += t.logits[r*t.ld + j];
        }
        t.m[r] = max;
        t.l[r] = sum;
    }

    std::fill(t.o, t.o + t.n_rows*a.d_v_pad, 0.0f);
    for (const columns & part : parts) {
        for (int64_t j = 0; j < part.visible[t.n_rows - 1]; ++j) {
            row_to_float(a.v, part.rows[j], h, row.data());
            for (int r = 0; r < t.n_rows; ++r) {
                if (j < part.visible[r] && t.m[r] != -INFINITY) {
                    for (int64_t i = 0; i < a.d_v; ++i) {
                        t.o[r*a.d_v_pad + i] += part.logits[r*t.ld + j]*row[i];
                    }
                }
            }
        }
    }
}

// n rows from the row-th on
void attn::compute_tile(float * work, const scratch_space & scratch, int64_t h, int64_t row, int64_t n, int64_t block, const peaks & max, float * sums) const {
    const lookup_keys & keys = scratch.keys;

    int64_t       visible [H2O_ATTN_MAX_ROWS];
    int64_t       counted [H2O_ATTN_MAX_ROWS];
    int64_t       visible2[H2O_ATTN_MAX_ROWS];
    const float * q_rows  [H2O_ATTN_MAX_ROWS];

    const h2o_attn_tile t = {
        /*.n_rows   =*/ (int) n,
        /*.d_k      =*/ d_k,
        /*.d_v      =*/ d_v,
        /*.n_k      =*/ n_k_pad,
        /*.q        =*/ scratch.q,
        /*.visible  =*/ visible,
        /*.counted  =*/ counted,
        /*.k        =*/ packed_k(work, h),
        /*.v        =*/ packed_v(work, h),
        /*.n_k2     =*/ h2o_attn_pad(keys.n),
        /*.visible2 =*/ visible2,
        /*.k2       =*/ keys.k,
        /*.v2       =*/ keys.v,
        /*.logits   =*/ scratch.logits,
        /*.ld       =*/ ld,
        /*.split    =*/ scratch.split,
        /*.o        =*/ scratch.o,
        /*.m        =*/ scratch.m,
        /*.l        =*/ scratch.l,
        /*.sums     =*/ sums,
    };

    for (int r = 0; r < t.n_rows; ++r) {
        const int64_t i    = (row + r)/group;
        const int64_t head = (row + r)%group + h*group;

        visible [r] = n_visible(row + r);
        counted [r] = n_counted(row + r, h, block);
        visible2[r] = keys.n_visible(i);
        q_rows  [r] = (const float *) ((const char *) q->data + i*q->nb[1] + head*q->nb[2] + block*q->nb[3]);
        for (int64_t j = 0; j < d_k; ++j) {
            scratch.q[r*d_k + j] = scale*q_rows[r][j];
        }
    }

    const float max_q   = peak(t.q, t.n_rows*d_k);
    const bool  is_tame = max_q < 1e30f && max.k < 1e30f && max.v < 1e30f && max_q*max.k*d_k < 1e37f;
    if (is_tame && visible[0] > 0) {
        kernel.tile(t);
    } else {
        plain_tile(*this, t, h, rows_of(h, block), keys.rows, q_rows);
    }

    for (int r = 0; r < t.n_rows; ++r) {
        const int64_t i    = (row + r)/group;
        const int64_t head = (row + r)%group + h*group;

        memcpy(o + ((block*n_q + i)*n_head + head)*d_v, t.o + r*d_v_pad, d_v*sizeof(float));
        m[(block*n_head + head)*n_q + i] = t.m[r];
        l[(block*n_head + head)*n_q + i] = t.l[r];
    }
}

void attn::compute_item(float * work, scratch_space & scratch, int64_t h, int64_t item, int64_t block) const {
    float * sums = has_sums ? item_sums(work, h, item) : nullptr;
    if (sums) {
        std::fill(sums, sums + n_k_pad, 0.0f);
    }

    peaks max = { 0.0f, 0.0f };
    for (int64_t u = 0; u < n_units; ++u) {
        max.add(unit_peaks(work, h)[u]);
    }

    const int64_t run  = item/n_parts;
    const int64_t part = item%n_parts;

    for (int64_t lookup = run*n_lookups/n_runs; lookup < (run + 1)*n_lookups/n_runs; ++lookup) {
        const int64_t start   = std::max<int64_t>(lookup*lookup_size - lookup_offset, 0); // queries
        const int64_t end     = std::min((lookup + 1)*lookup_size - lookup_offset, n_q);
        const int64_t n_tiles = ceil_div((end - start)*group, kernel.n_rows);

        const int64_t first_tile = part*n_tiles/n_parts;
        const int64_t end_tile   = (part + 1)*n_tiles/n_parts;

        peaks max_here = max;
        if (lookup_rows && first_tile < end_tile) {
            gather_lookup(scratch, h, lookup, end);
            max_here.add(scratch.keys.max);
        }

        for (int64_t tile = first_tile; tile < end_tile; ++tile) {
            const int64_t row = start*group + tile*kernel.n_rows;
            compute_tile(work, scratch, h, row, std::min<int64_t>(kernel.n_rows, end*group - row), block, max_here, sums);
        }
    }
}

void attn::add_sums(float * work, int64_t h, int64_t block, int64_t start, int64_t end) const {
    float * dst = sums + (block*n_head_kv + h)*n_k;

    std::fill(dst + start, dst + end, 0.0f);
    for (int64_t item = 0; item < n_items; ++item) {
        const float * src = item_sums(work, h, item);
        for (int64_t j = start; j < end; ++j) {
            dst[j] += src[j];
        }
    }
}

const h2o_attn_kernel & kernel_for(const ggml_tensor * dst) {
    return h2o_attn_kernel_in_use(dst->src[6] != nullptr);
}

} // namespace

size_t ggml_h2o_attn_work_size(const ggml_tensor * dst, int n_threads) {
    return attn(dst, kernel_for(dst), n_threads).size*sizeof(float) + 64;
}

void ggml_compute_forward_h2o_attn(const ggml_compute_params * params, ggml_tensor * dst) {
    const int ith = params->ith;
    const int nth = params->nth;

    const attn a(dst, kernel_for(dst), nth);
    GGML_ASSERT(a.size*sizeof(float) + 64 <= params->wsize);

    float * work = (float *) GGML_PAD((uintptr_t) params->wdata, 64);

    scratch_space scratch = a.thread_scratch(work, ith);

    for (int64_t block = 0; block < a.n_block; ++block) {
        for (int64_t first = 0; first < a.n_head_kv; first += a.n_round) {
            const int64_t n = std::min(a.n_round, a.n_head_kv - first);

            if (ith == 0) {
                ggml_threadpool_chunk_set(params->threadpool, nth);
            }

            // the heads of a token stand together in the cache
            for (int64_t i = ith; i < n*a.n_units; i += nth) {
                a.pack(work, scratch.rows, first + i%n, i/n, block);
            }

            ggml_barrier(params->threadpool);

            // the items of a KV head one after another, those that see most keys first
            for (int64_t i = ith; i < n*a.n_items; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
                a.compute_item(work, scratch, first + i/a.n_items, a.n_items - 1 - i%a.n_items, block);
            }

            ggml_barrier(params->threadpool);

            for (int64_t i = ith; a.has_sums && i < n*a.n_units; i += nth) {
                const int64_t start = i%a.n_units*H2O_ATTN_KEYS;
                a.add_sums(work, first + i/a.n_units, block, start, std::min(start + H2O_ATTN_KEYS, a.n_k));
            }
        }
    }
}
