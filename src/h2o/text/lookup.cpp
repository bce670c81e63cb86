#include "h2o/text/lookup.h"

#include <algorithm>
#include <stdexcept>
#include <string>

static constexpr int32_t EMPTY = INT32_MIN;

static constexpr size_t MIN_SLOTS = 16;

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
        grams[i].slots.assign(MIN_SLOTS, EMPTY);
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
        res += (gram.slots.capacity() + gram.back.capacity())*sizeof(int32_t) + gram.frequent.capacity()*sizeof(gram_index::chain);
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
    while (gram.slots[i] != EMPTY && !is_same(gram.head(gram.slots[i]))) {
        i = i + 1 < gram.slots.size() ? i + 1 : 0;
    }
    return i;
}

void h2o_lookup::rehash(gram_index & gram, size_t n_slots) const {
    std::vector<int32_t> old(n_slots, EMPTY);

    old.swap(gram.slots);
    for (const int32_t slot : old) {
        if (slot != EMPTY) {
            gram.slots[find(gram, gram.head(slot))] = slot;
        }
    }
}

void h2o_lookup::add_position(gram_index & gram) const {
    const int32_t pos = gram.back.size();
    if ((uint32_t) pos + 1 < gram.length) {
        gram.back.push_back(0);
        return;
    }
    if (gram.n_used >= gram.slots.size()/5*4) {
        rehash(gram, gram.slots.size() + gram.slots.size()/5);
    }

    int32_t & slot = gram.slots[find(gram, pos)];
    const int32_t prev = slot == EMPTY ? -1 : gram.head(slot);

    if (slot == EMPTY) {
        slot = pos;
        gram.n_used++;
    } else if (slot < 0) {
        gram.frequent[~slot].head = pos;
        gram.frequent[~slot].n++;
    } else {
        uint32_t n = 1;
        for (int32_t p = prev; p >= 0; p = gram.prev(p)) {
            n++;
        }
        if (n == MAX_VISITS) {
            gram.frequent.push_back({ pos, n });
            slot = ~(int32_t) (gram.frequent.size() - 1);
        } else {
            slot = pos;
        }
    }
    gram.back.push_back(prev >= 0 ? pos - prev : 0);
}

void h2o_lookup::remove_position(gram_index & gram) const {
    const int32_t pos  = gram.back.size() - 1;
    const int32_t prev = gram.prev(pos);
    if ((uint32_t) pos + 1 >= gram.length) {
        const uint32_t i = find(gram, pos);

        int32_t & slot = gram.slots[i];
        if (slot < 0) {
            gram.frequent[~slot].head = prev;
            if (--gram.frequent[~slot].n < MAX_VISITS) {
                gram.frequent.pop_back(); // the last that came
                slot = prev;
            }
        } else if (prev >= 0) {
            slot = prev;
        } else {
            remove_slot(gram, i);
        }
    }
    gram.back.pop_back();
}

// What would not be found behind the gap moves into it.
void h2o_lookup::remove_slot(gram_index & gram, uint32_t gap) const {
    const uint32_t n_slots  = gram.slots.size();
    const auto     next     = [&](uint32_t i) { return i + 1 < n_slots ? i + 1 : 0; };
    const auto     distance = [&](uint32_t from, uint32_t to) { return to >= from ? to - from : to + n_slots - from; };

    for (uint32_t i = next(gap); gram.slots[i] != EMPTY; i = next(i)) {
        if (distance(home(gram, gram.head(gram.slots[i])), i) >= distance(gap, i)) {
            gram.slots[gap] = gram.slots[i];
            gap = i;
        }
    }
    gram.slots[gap] = EMPTY;
    gram.n_used--;
}

void h2o_lookup::unindex(uint32_t n) {
    for (gram_index & gram : grams) {
        while (gram.back.size() > n) {
            remove_position(gram);
        }
    }
}

void h2o_lookup::index_to(uint32_t n) {
    unindex(n);
    for (gram_index & gram : grams) {
        while (gram.back.size() < n) {
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

namespace {

// Scores of positions, in a hash table.
class lookup_scores {
public:
    struct scored {
        int32_t pos;
        double  score;
    };

    std::vector<scored> found; // in any order

    // none; as many positions are excluded at most
    void reset(size_t n_excluded) {
        for (const uint32_t i : used) {
            places[i].pos = -1;
        }
        while (places.size() < 2*(n_excluded + h2o_lookup::MAX_ROWS)) {
            places.resize(std::max<size_t>(2*places.size(), 1024));
        }
        used.clear();
        found.clear();
    }

    // before any is added to
    void exclude(int32_t pos) { find(pos).index = EXCLUDED; }

    void add(int32_t pos, double x) {
        place & p = find(pos);
        if (p.index == EXCLUDED) {
            return;
        }
        if (p.index == NEW) {
            p.index = found.size();
            found.push_back({ pos, 0.0 });
        }
        found[p.index].score += x;
    }

private:
    static constexpr int32_t NEW = -1, EXCLUDED = -2;

    struct place {
        int32_t pos   = -1;  // none
        int32_t index = NEW; // in `found`
    };

    place & find(int32_t pos) {
        const uint32_t mask = places.size() - 1; // a power of two

        uint32_t i = (uint32_t) pos*0x9e3779b1u >> 12 & mask;
        while (places[i].pos != pos) {
            if (places[i].pos < 0) {
                places[i] = { pos, NEW };
                used.push_back(i);
                break;
            }
            i = (i + 1) & mask;
        }
        return places[i];
    }

    std::vector<place>    places;
    std::vector<uint32_t> used;
};

// apart, so that its address is looked for once
[[gnu::noinline]] lookup_scores & scores_of_thread() {
    static thread_local lookup_scores scores;
    return scores;
}

// What is looked up around an earlier occurrence of a query's n-gram, and what it is worth.
struct follower {
    int32_t offset;
    double  weight;
};

constexpr follower FOLLOWERS[4] = { { 1, 1.0 }, { 0, 0.5 }, { 2, 0.5 }, { 3, 0.25 } };

}

void h2o_lookup::choose_for(uint32_t query, std::vector<h2o_lookup_row> & log) const {
    const int32_t begin = params.sink_tokens;
    const int32_t end   = grams[0].back.size();
    if (params.budget == 0 || begin >= end) {
        return;
    }

    lookup_scores & scores = scores_of_thread();

    const size_t first = first_seen(log, query);

    scores.reset(log.size() - first);
    for (size_t i = first; i < log.size(); ++i) {
        if (log[i].pos >= 0 && log[i].pos < end) {
            scores.exclude(log[i].pos);
        }
    }

    for (const gram_index & gram : grams) {
        if (query + 1 < gram.length) {
            break;
        }
        const int32_t slot = gram.slots[find(gram, query)];
        if (slot == EMPTY) {
            break; // nor is there a longer one
        }

        int32_t  visits[MAX_VISITS];
        uint32_t n_visits = 0;
        for (int32_t p = gram.head(slot); p >= 0 && n_visits < MAX_VISITS; p = gram.prev(p)) {
            visits[n_visits++] = p;
        }

        const double weight = gram.length/(double) (slot >= 0 ? n_visits : gram.frequent[~slot].n);
        for (uint32_t i = 0; i < n_visits; ++i) {
            for (const follower & f : FOLLOWERS) {
                const int32_t pos = visits[i] + f.offset;
                if (pos >= begin && pos < end) {
                    scores.add(pos, f.weight*weight);
                }
            }
        }
    }

    auto & best = scores.found;

    const auto end_best = best.begin() + std::min<size_t>(best.size(), n_new());
    std::nth_element(best.begin(), end_best, best.end(), [](const auto & a, const auto & b) {
        return a.score != b.score ? a.score > b.score : a.pos > b.pos;
    });
    std::sort(best.begin(), end_best, [](const auto & a, const auto & b) { return a.pos < b.pos; });
    for (auto it = best.begin(); it != end_best; ++it) {
        log.push_back({ it->pos, (int32_t) query });
    }
}
