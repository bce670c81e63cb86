// Further keys that each query of a tile has for itself. Nothing can be shared between queries, so they are read where they lie,
// and rows by index come slowly: they are asked for while the keys that all queries share are multiplied.

#include "h2o-attn-in-place.h"

namespace {

class query_keys {
public:
    explicit query_keys(const h2o_attn_tile & t) : t(t), n_queries((t.query_head + t.n_rows - 1)/t.group + 1) {}

    // The logits, along with n_steps of other work, of which step are done. There are n_queries + 1 slots: in each, one query's keys
    // are asked for, and those of the query before are multiplied. In the last slot, the first query's values are asked for.
    void multiply_k(int64_t step, int64_t n_steps) {
        const int64_t n_slots = n_queries + 1;

        for (; n_asked < step*n_slots*t.n_query/n_steps; ++n_asked) {
            if (n_asked < n_queries*t.n_query) {
                ask(t.query_k, n_asked);
            } else {
                ask(t.query_v, n_asked - n_queries*t.n_query);
            }
        }
        for (; n_logits < step*n_slots/n_steps - 1; ++n_logits) {
            const h2o_attn_in_place x = keys_of(n_logits);
            multiply_keys(x, finite, [](int64_t) {});
        }
    }

    // query_o, likewise. There are n_queries slots: in each, one query's values are added up, and those of the next are asked for.
    void add_v(int64_t step, int64_t n_steps) {
        const int64_t n_values = n_queries*t.n_query;

        for (; n_asked < min_of(n_values, t.n_query + step*n_values/n_steps) + n_values; ++n_asked) {
            ask(t.query_v, n_asked - n_values);
        }
        for (; n_outputs < step*n_queries/n_steps; ++n_outputs) {
            const h2o_attn_in_place x = keys_of(n_outputs);
            add_up_values(x, finite);
        }
    }

    // whether all logits and outputs were
    bool are_finite() const { return all_lanes(finite); }

private:
    void ask(const h2o_attn_source & x, int64_t i) const {
        if (x.rows[i] >= 0) {
            prefetch_row(x, i);
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

    int64_t n_asked   = 0; // keys, then values
    int64_t n_logits  = 0; // queries that have them
    int64_t n_outputs = 0;

    vec_i finite = vec_i {} - 1;
};

} // namespace
