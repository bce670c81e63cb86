#include "h2o/text/lookup.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

static constexpr size_t MIN_SLOTS = 16;

// as push_back, with a fifth of free room at most
template <typename T>
static void append_to(std::vector<T> & v, T x) {
    if (v.size() == v.capacity()) {
        v.reserve(v.size() + v.size()/5 + 1);
    }
    v.push_back(x);
}

h2o_lookup::h2o_lookup(const llama_h2o_params & params) : params(params) {
    clear_index();
}

void h2o_lookup::clear_index() {
    for (uint32_t i = 0; i < N_GRAM; ++i) {
        grams[i] = { i + 1, 0, std::vector<gram_index::slot>(MIN_SLOTS), {} };
    }
}

void h2o_lookup::append(const int32_t * ids, size_t n) {
    if (n > INT32_MAX - tokens.size()) {
        throw std::length_error("[lookup] a sequence has less than 2^31 tokens");
    }
    tokens.insert(tokens.end(), ids, ids + n);
}

void h2o_lookup::truncate(uint32_t n) {
    if (n < grams[0].prev.size()) {
        clear_index();
    }
    tokens.resize(std::min<size_t>(n, tokens.size()));
    rows.resize(n_rows_of(n));
    first_kept = std::min(first_kept, n);
}

size_t h2o_lookup::bytes() const {
    size_t res = sizeof(*this) + tokens.capacity()*sizeof(int32_t);
    for (const gram_index & gram : grams) {
        res += gram.slots.capacity()*sizeof(gram.slots[0]) + gram.prev.capacity()*sizeof(gram.prev[0]);
    }
    return res;
}

uint32_t h2o_lookup::home(const gram_index & gram, uint32_t pos) const {
    uint64_t h = 0;
    for (uint32_t i = 0; i < gram.length; ++i) {
        h = (h ^ (uint32_t) tokens[pos - i])*0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    h *= 0xd6e8feb86659fd93u;

    return (h >> 32)*gram.slots.size() >> 32;
}

uint32_t h2o_lookup::find(const gram_index & gram, uint32_t pos) const {
    const auto is_same = [&](uint32_t a) {
        for (uint32_t i = 0; i < gram.length; ++i) {
            if (tokens[a - i] != tokens[pos - i]) {
                return false;
            }
        }
        return true;
    };

    uint32_t i = home(gram, pos);
    while (gram.slots[i].n > 0 && !is_same(gram.slots[i].head)) {
        i = i + 1 < gram.slots.size() ? i + 1 : 0;
    }
    return i;
}

void h2o_lookup::grow(gram_index & gram) const {
    std::vector<gram_index::slot> old(gram.slots.size() + gram.slots.size()/5);

    old.swap(gram.slots);
    for (const auto & slot : old) {
        if (slot.n > 0) {
            gram.slots[find(gram, slot.head)] = slot;
        }
    }
}

void h2o_lookup::add_position(gram_index & gram) const {
    const int32_t pos = gram.prev.size();
    if ((uint32_t) pos + 1 < gram.length) {
        append_to(gram.prev, -1);
        return;
    }
    if (gram.n_used >= gram.slots.size()/5*4) {
        grow(gram);
    }
    auto & slot = gram.slots[find(gram, pos)];
    append_to(gram.prev, slot.n > 0 ? slot.head : -1);
    slot.head = pos;
    gram.n_used += slot.n++ == 0;
}

void h2o_lookup::index_to(uint32_t n) {
    if (n < grams[0].prev.size()) {
        clear_index();
    }
    for (gram_index & gram : grams) {
        while (gram.prev.size() < n) {
            add_position(gram);
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
    const int32_t end   = grams[0].prev.size();
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

    for (const gram_index & gram : grams) {
        if (query + 1 < gram.length) {
            break;
        }
        const auto & slot = gram.slots[find(gram, query)];
        if (slot.n == 0) {
            break; // nor is there a longer one
        }
        const double weight = gram.length/(double) slot.n;

        int32_t p = slot.head;
        for (uint32_t i = 0; i < MAX_VISITS && p >= 0; ++i, p = gram.prev[p]) {
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
