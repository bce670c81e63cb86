// Further keys that each query of a tile has for itself. Queries share nothing of them, so they are read where they lie. Rows by
// index come slowly: their cache lines are asked for one by one, within the products of the keys that all queries share.

#include "h2o-attn-in-place.h"

namespace {

// Cache lines to ask for.
struct cache_lines {
    static constexpr int MAX = 256;

    const char * line[MAX];
    int          n = 0;
};

// The products take a number of steps, in which these keys are taken care of: in the products with K there are n_queries + 1 slots,
// in each of which one query's keys are asked for, and the logits are computed of the query before. In the last slot the first
// query's values are asked for; in the products with V there are n_queries slots, each for one query's values.
class query_keys {
public:
    explicit query_keys(const h2o_attn_tile & t)
        : t(t), n_queries((t.query_head + t.n_rows - 1)/t.group + 1), n_lines_k((t.query_k.size + 63)/64), n_lines_v((t.query_v.size + 63)/64) {}

    // after the step-th of the products with K
    void multiply_k(int64_t step, int64_t n_steps) {
        for (; n_logits < step*(n_queries + 1)/n_steps - 1; ++n_logits) {
            multiply_keys(keys_of(n_logits), finite, [](int64_t) {});
        }
    }

    // likewise with V: query_o
    void add_v(int64_t step, int64_t n_steps) {
        for (; n_outputs < step*n_queries/n_steps; ++n_outputs) {
            add_up_values(keys_of(n_outputs), finite);
        }
    }

    // What to ask for in the next step, n lines at most. What was too much for the steps before is left out once it is late.
    const cache_lines & lines_k(int64_t step, int64_t n_steps, int64_t n) {
        lines.n = 0;
        const int64_t end = (step + 1)*(n_queries + 1)*t.n_query/n_steps;
        ask(t.query_k, n_lines_k, asked_k, n_logits, min_of(end, n_queries*t.n_query), n);
        ask(t.query_v, n_lines_v, asked_v, 0, end - n_queries*t.n_query, n);
        return lines;
    }

    const cache_lines & lines_v(int64_t step, int64_t n_steps, int64_t n) {
        lines.n = 0;
        ask(t.query_v, n_lines_v, asked_v, n_outputs, min_of(t.n_query + (step + 1)*n_queries*t.n_query/n_steps, n_queries*t.n_query), n);
        return lines;
    }

    // whether all logits and outputs are
    bool are_finite() const { return all_lanes(finite); }

private:
    // up to the row with this number, from the query with this number on
    void ask(const h2o_attn_source & x, int64_t n_lines, int64_t & asked, int64_t query, int64_t end, int64_t n) {
        asked = max_of(asked, query*t.n_query);
        n     = min_of(n, cache_lines::MAX);
        for (; asked < end && lines.n + n_lines <= n; ++asked) {
            if (x.rows[asked] >= 0) {
                const char * row = row_of(x, asked);
                for (int64_t i = 0; i < n_lines; ++i) {
                    lines.line[lines.n++] = row + 64*i;
                }
            }
        }
    }

    h2o_attn_in_place keys_of(int64_t query) const {
        const int64_t row = max_of(query*t.group - t.query_head, 0);
        const int64_t end = min_of((query + 1)*t.group - t.query_head, t.n_rows);

        const int64_t d_v_pad = h2o_attn_pad(t.d_v);

        h2o_attn_in_place x = {
            /*.n_rows   =*/ (int) (end - row),
            /*.d_k      =*/ t.d_k,
            /*.d_v      =*/ t.d_v,
            /*.n_k      =*/ t.visible2[row],
            /*.q        =*/ t.q + row*t.d_k,
            /*.hidden   =*/ nullptr,
            /*.visible  =*/ nullptr,
            /*.k        =*/ t.query_k,
            /*.v        =*/ t.query_v,
            /*.next     =*/ {},
            /*.n_next   =*/ 0,
            /*.logits   =*/ t.logits + row*t.ld + t.n_k,
            /*.ld       =*/ t.ld,
            /*.o        =*/ t.query_o + row*d_v_pad,
            /*.ld_o     =*/ d_v_pad,
            /*.m        =*/ t.m + row,
            /*.l        =*/ t.l + row,
        };
        x.k.rows += query*t.n_query;
        x.v.rows += query*t.n_query;
        return x;
    }

    const h2o_attn_tile & t;

    const int64_t n_queries;
    const int64_t n_lines_k; // of a row
    const int64_t n_lines_v;

    int64_t n_logits  = 0; // queries that have them
    int64_t n_outputs = 0;
    int64_t asked_k   = 0; // rows
    int64_t asked_v   = 0;

    cache_lines lines;

    vec_i finite = vec_i {} - 1;
};

} // namespace
