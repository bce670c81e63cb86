#include "h2o/text/lookup.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

h2o_lookup::h2o_lookup(const llama_h2o_params & params) : params(params) {}

void h2o_lookup::clear_index() {
    grams.clear();
    n_indexed = 0;
}

void h2o_lookup::append(const int32_t * ids, size_t n) {
    if (n > INT32_MAX - tokens.size()) {
        throw std::length_error("[lookup] a sequence has less than 2^31 tokens");
    }
    tokens.insert(tokens.end(), ids, ids + n);
}

void h2o_lookup::truncate(uint32_t n) {
    if (n < n_indexed) {
        clear_index();
    }
    tokens.resize(std::min<size_t>(n, tokens.size()));
    rows.resize(n_rows_of(n));
    first_kept = std::min(first_kept, n);
}

size_t h2o_lookup::bytes() const {
    // with a hash, a link and what the heap adds
    constexpr size_t NODE = sizeof(decltype(grams)::value_type) + 3*sizeof(void *);

    size_t res = sizeof(*this) + tokens.capacity()*sizeof(int32_t) + grams.size()*NODE +
            grams.bucket_count()*sizeof(void *);
    for (const auto & positions : prev) {
        res += positions.capacity()*sizeof(positions[0]);
    }
    return res;
}

size_t h2o_lookup::gram_hash::operator()(const gram & gram) const {
    uint64_t h = 0;
    for (const int32_t x : gram) {
        h = (h ^ (uint32_t) x)*0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}

h2o_lookup::gram h2o_lookup::gram_at(uint32_t pos, uint32_t length) const {
    gram res = { (int32_t) length };
    for (uint32_t i = 0; i < length; ++i) {
        res[1 + i] = tokens[pos - i];
    }
    return res;
}

void h2o_lookup::index_to(uint32_t n) {
    if (n < n_indexed) {
        clear_index();
    }
    for (auto & positions : prev) {
        positions.resize(n, -1);
    }
    for (; n_indexed < n; ++n_indexed) {
        for (uint32_t length = 1; length <= std::min(N_GRAM, n_indexed + 1); ++length) {
            auto & found = grams[gram_at(n_indexed, length)];
            prev[length - 1][n_indexed] = std::exchange(found.newest, n_indexed);
            found.n++;
        }
    }
}

size_t h2o_lookup::n_rows_of(uint32_t query) const {
    const auto before = [](const h2o_lookup_row & row, int64_t q) { return row.query < q; };

    return std::lower_bound(rows.begin(), rows.end(), (int64_t) query, before) - rows.begin();
}

size_t h2o_lookup::first_seen(uint32_t query) const {
    const size_t n = n_rows_of(query - query % params.chunk_size % params.tile);

    return n - std::min<size_t>(n, params.lookup_budget);
}

h2o_lookup::view h2o_lookup::seen(uint32_t q0, uint32_t q1) const {
    return { rows.data() + first_seen(q0), rows.data() + n_rows_of(q1) };
}

std::vector<int32_t> h2o_lookup::positions_seen(uint32_t q0, uint32_t q1) const {
    const auto view = seen(q0, q1);

    std::vector<int32_t> res;
    for (const auto * row = view.begin; row < view.end; ++row) {
        res.push_back(row->pos);
    }
    std::sort(res.begin(), res.end());
    res.erase(std::unique(res.begin(), res.end()), res.end());

    return res;
}

void h2o_lookup::forget(uint32_t query) {
    if (query > first_kept) {
        rows.erase(rows.begin(), rows.begin() + first_seen(query));
        first_kept = query;
    }
}

void h2o_lookup::assign_text(const std::vector<int32_t> & ids) {
    clear_index();
    tokens = ids;
}

void h2o_lookup::assign_log(h2o_lookup_log log, uint32_t start) {
    rows       = std::move(log);
    first_kept = start;
}

void h2o_lookup::choose(uint32_t q0, uint32_t q1) {
    if (q0 >= q1 || q1 > tokens.size()) {
        throw std::invalid_argument("[lookup] queries must be a part of the text");
    }
    for (uint32_t q = q0; q < q1; ++q) {
        const uint32_t chunk = q - q % params.chunk_size;

        index_to(chunk - std::min(chunk, params.local_window));
        choose_for(q);
    }
}

// A position near an earlier occurrence of a query's n-gram, and its weight.
struct follower {
    int32_t offset;
    double  weight;
};

static constexpr follower FOLLOWERS[4] = { { 1, 1.0 }, { 0, 0.5 }, { 2, 0.5 }, { 3, 0.25 } };

void h2o_lookup::choose_for(uint32_t query) {
    const int32_t begin = params.sink_tokens;
    const int32_t end   = n_indexed;
    if (params.lookup_budget == 0 || begin >= end) {
        return;
    }
    static thread_local std::vector<double> buffer; // zeros between calls
    buffer.resize(std::max<size_t>(buffer.size(), end));

    double * scores = buffer.data(); // by position

    std::vector<int32_t> found; // positions with a score
    found.reserve(MAX_ROWS);

    const size_t first  = first_seen(query);
    const size_t n_rows = rows.size();
    const auto   set_seen = [&](double score) {
        for (size_t i = first; i < n_rows; ++i) {
            if (rows[i].pos >= 0 && rows[i].pos < end) {
                scores[rows[i].pos] = score;
            }
        }
    };
    set_seen(NAN); // stays NaN: never chosen

    for (uint32_t length = 1; length <= std::min(N_GRAM, query + 1); ++length) {
        const auto it = grams.find(gram_at(query, length));
        if (it == grams.end()) {
            break; // nor is there a longer one
        }
        const double weight = length/(double) it->second.n;

        int32_t p = it->second.newest;
        for (uint32_t i = 0; i < MAX_VISITS && p >= 0; ++i, p = prev[length - 1][p]) {
            for (const follower & f : FOLLOWERS) {
                const int32_t pos = p + f.offset;
                if (pos >= begin && pos < end) {
                    if (scores[pos] == 0.0) {
                        found.push_back(pos);
                    }
                    scores[pos] += f.weight*weight;
                }
            }
        }
    }

    const auto last = found.begin() + std::min<size_t>(found.size(), n_new());
    std::nth_element(found.begin(), last, found.end(), [scores](int32_t a, int32_t b) {
        return scores[a] != scores[b] ? scores[a] > scores[b] : a > b;
    });
    std::sort(found.begin(), last);
    set_seen(0.0);
    for (const int32_t pos : found) {
        scores[pos] = 0.0;
    }
    for (auto it = found.begin(); it != last; ++it) {
        rows.push_back({ *it, (int32_t) query });
    }
}
