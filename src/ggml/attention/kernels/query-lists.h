// Lists of further keys, one for each query of a tile. Queries share nothing of them, so they are read where they lie. Rows by
// index come slowly: their cache lines are asked for one by one, within the products of the keys that all queries share.

#include "ggml/attention/kernels/in-place.h"

namespace {

// Cache lines to ask for.
struct cache_lines {
    static constexpr int MAX = 256;

    const char * line[MAX];
    int          n;
};

// The lists of the tile's queries are read one after the other, some rows after each step of the products: keys along with those with
// K, values along with those with V. They are asked for a little earlier, not much: rows of one head share few sets of a cache.
class query_lists {
public:
    explicit query_lists(const h2o_attn_tile & t)
        : t(t), n_rows(t.lists.n > 0 ? ((t.lists.query_head + t.n_rows - 1)/t.lists.group + 1)*t.lists.n : 0),
          n_lines_k((t.lists.k.size + 63)/64), n_lines_v((t.lists.v.size + 63)/64) {}

    explicit operator bool() const { return n_rows > 0; }

    // What to ask for in a product after this part of the steps, n lines at most. What is too late is left out.
    const cache_lines & lines_k(int64_t step, int64_t n_steps, int64_t n) {
        const int64_t end = AHEAD + step*n_rows/n_steps;

        lines.n = 0;
        ask(t.lists.k, n_lines_k, asked_k, read_k, end, n);
        ask(t.lists.v, n_lines_v, asked_v, 0, end - n_rows, n);
        return lines;
    }

    const cache_lines & lines_v(int64_t step, int64_t n_steps, int64_t n) {
        lines.n = 0;
        ask(t.lists.v, n_lines_v, asked_v, read_v, AHEAD + step*n_rows/n_steps, n);
        return lines;
    }

    // logits, up to this part of them
    void multiply_k(int64_t step, int64_t n_steps) {
        while (read_k < n_rows && read_k + chunk_size(read_k) <= step*n_rows/n_steps) {
            multiply_keys(keys_from(read_k), /*prefetch =*/ false, finite);
            read_k += chunk_size(read_k);
        }
    }

    // their output, likewise
    void add_v(int64_t step, int64_t n_steps) {
        while (read_v < n_rows && read_v + chunk_size(read_v) <= step*n_rows/n_steps) {
            add_up_values(keys_from(read_v), /*prefetch =*/ false, finite);
            read_v += chunk_size(read_v);
        }
    }

    // whether all logits and outputs are
    bool are_finite() const { return all_lanes(finite); }

private:
    static constexpr int64_t CHUNK = 32;
    static constexpr int64_t AHEAD = 32;

    // all numbers of rows are those of the lists together; a chunk is of one query
    int64_t chunk_size(int64_t row) const { return min_of(t.lists.n - row%t.lists.n, CHUNK); }

    void ask(const h2o_attn_source & x, int64_t n_lines, int64_t & asked, int64_t start, int64_t end, int64_t n) {
        n   = min_of(n, cache_lines::MAX);
        end = min_of(end, n_rows);
        for (asked = max_of(asked, start); asked < end && lines.n + n_lines <= n; ++asked) {
            if (x.rows[asked] >= 0) {
                const char * row = row_of(x, asked);
                for (int64_t i = 0; i < n_lines; ++i) {
                    lines.line[lines.n++] = row + 64*i;
                }
            }
        }
    }

    // a chunk
    h2o_attn_in_place keys_from(int64_t row) const {
        const h2o_attn_lists & lists = t.lists;

        const int64_t query = row/lists.n;
        const int64_t key   = row%lists.n;
        const int64_t first = max_of(query*lists.group - lists.query_head, 0); // of the tile's rows
        const int64_t end   = min_of((query + 1)*lists.group - lists.query_head, t.n_rows);

        const int64_t d_v_pad = h2o_attn_pad(t.d_v);

        h2o_attn_in_place x = {};
        x.n_rows = (int) (end - first);
        x.d_k    = t.d_k;
        x.d_v    = t.d_v;
        x.n_k    = max_of(min_of(lists.visible[first] - key, CHUNK), 0);
        x.q      = t.q + first*t.d_k;
        x.k      = lists.k;
        x.v      = lists.v;
        x.logits = t.logits + first*t.ld + t.own.n + key;
        x.ld     = t.ld;
        x.o      = lists.o + first*d_v_pad;
        x.ld_o   = d_v_pad;
        x.add    = key > 0;
        x.m      = t.m + first;
        x.l      = t.l + first;
        x.k.rows += row;
        x.v.rows += row;
        return x;
    }

    const h2o_attn_tile & t;

    const int64_t n_rows;
    const int64_t n_lines_k; // of a row
    const int64_t n_lines_v;

    int64_t read_k  = 0;
    int64_t read_v  = 0;
    int64_t asked_k = 0;
    int64_t asked_v = 0;

    cache_lines lines;

    vec_i finite = vec_i {} - 1;
};

} // namespace
