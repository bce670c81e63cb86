#include "h2o/text/lookup.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

static constexpr size_t MIN_SLOTS = 16;

// as push_back, with a fifth of free room at most
template <typename T>
static void append_to(std::vector<T> & v, T x) {
    if (v.size() == v.capacity()) {
        v.reserve(v.size() + v.size()/5 + 1);
    }
    v.push_back(x);
}

void h2o_lookup_params::validate() const {
    const auto check = [](bool ok, const char * what) {
        if (!ok) {
            throw std::invalid_argument(std::string("[lookup] ") + what);
        }
    };
    check(chunk_size >= 1 && chunk_size <= INT32_MAX,  "the chunk size must be in [1, 2^31)");
    check(tile >= 1,                                   "the tile must be at least 1");
    check(budget       <= INT32_MAX,                   "the budget must be less than 2^31");
    check(sink_tokens  <= INT32_MAX,                   "sink tokens must be less than 2^31");
    check(local_window <= INT32_MAX,                   "the local window must be less than 2^31");
}

h2o_lookup::h2o_lookup(const h2o_lookup_params & params) : params(params) {
    params.validate();
    for (uint32_t i = 0; i < N_GRAM; ++i) {
        grams[i].length = i + 1;
        grams[i].slots.resize(MIN_SLOTS);
    }
}

void h2o_lookup::append(const int32_t * ids, size_t n) {
    if (n > INT32_MAX - tokens.size()) {
        throw std::length_error("[lookup] a sequence has less than 2^31 tokens");
    }
    tokens.insert(tokens.end(), ids, ids + n);
}

void h2o_lookup::truncate(uint32_t n) {
    unindex(n);
    if (n < tokens.size()) {
        tokens.resize(n);
    }
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

void h2o_lookup::rehash(gram_index & gram, size_t n_slots) const {
    std::vector<gram_index::slot> old(n_slots);

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
        rehash(gram, gram.slots.size() + gram.slots.size()/5);
    }
    auto & slot = gram.slots[find(gram, pos)];
    append_to(gram.prev, slot.n > 0 ? slot.head : -1);
    slot.head = pos;
    gram.n_used += slot.n++ == 0;
}

void h2o_lookup::remove_position(gram_index & gram) const {
    const int32_t pos = gram.prev.size() - 1;
    if ((uint32_t) pos + 1 >= gram.length) {
        const uint32_t i = find(gram, pos);

        gram.slots[i].head = gram.prev[pos];
        if (--gram.slots[i].n == 0) {
            remove_slot(gram, i);
        }
    }
    gram.prev.pop_back();
}

// Fills the gap with n-grams that would not be found behind it.
void h2o_lookup::remove_slot(gram_index & gram, uint32_t gap) const {
    const uint32_t n_slots  = gram.slots.size();
    const auto     next     = [&](uint32_t i) { return i + 1 < n_slots ? i + 1 : 0; };
    const auto     distance = [&](uint32_t from, uint32_t to) { return to >= from ? to - from : to + n_slots - from; };

    for (uint32_t i = next(gap); gram.slots[i].n > 0; i = next(i)) {
        if (distance(home(gram, gram.slots[i].head), i) >= distance(gap, i)) {
            gram.slots[gap] = gram.slots[i];
            gap = i;
        }
    }
    gram.slots[gap] = {};
    gram.n_used--;
}

void h2o_lookup::unindex(uint32_t n) {
    for (gram_index & gram : grams) {
        while (gram.prev.size() > n) {
            remove_position(gram);
        }
    }
}

void h2o_lookup::index_to(uint32_t n) {
    unindex(n);
    for (gram_index & gram : grams) {
        while (gram.prev.size() < n) {
            add_position(gram);
        }
    }
}

size_t h2o_lookup::first_seen(const std::vector<h2o_lookup_row> & log, uint32_t query) const {
    const int64_t tile   = query - query % params.chunk_size % params.tile;
    const auto    before = [](const h2o_lookup_row & row, int64_t q) { return row.query < q; };
    const size_t  n      = std::lower_bound(log.begin(), log.end(), tile, before) - log.begin();

    return n - std::min<size_t>(n, params.budget);
}

void h2o_lookup::choose(uint32_t q0, uint32_t q1, std::vector<h2o_lookup_row> & log) {
    if (q0 >= q1 || q1 > n_tokens()) {
        throw std::invalid_argument("[lookup] queries must be a part of the text");
    }
    for (uint32_t q = q0; q < q1; ++q) {
        const uint32_t chunk = q - q % params.chunk_size;

        index_to(chunk - std::min(chunk, params.local_window));
        choose_for(q, log);
    }
}

// A position near an earlier occurrence of a query's n-gram, and its weight.
struct follower {
    int32_t offset;
    double  weight;
};

static constexpr follower FOLLOWERS[4] = { { 1, 1.0 }, { 0, 0.5 }, { 2, 0.5 }, { 3, 0.25 } };

void h2o_lookup::choose_for(uint32_t query, std::vector<h2o_lookup_row> & log) const {
    const int32_t begin = params.sink_tokens;
    const int32_t end   = grams[0].prev.size();
    if (params.budget == 0 || begin >= end) {
        return;
    }
    static thread_local std::vector<double> buffer; // zeros between calls
    buffer.resize(std::max<size_t>(buffer.size(), end));

    double * scores = buffer.data(); // by position

    std::vector<int32_t> found; // positions with a score
    found.reserve(MAX_ROWS);

    const size_t first  = first_seen(log, query);
    const size_t n_rows = log.size();
    const auto   set_seen = [&](double score) {
        for (size_t i = first; i < n_rows; ++i) {
            if (log[i].pos >= 0 && log[i].pos < end) {
                scores[log[i].pos] = score;
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
        log.push_back({ *it, (int32_t) query });
    }
}
