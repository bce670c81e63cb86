#include "h2o/text/draft.h"

#include <cstddef>

// The largest position in [1, end) that ends a pair of tokens (a, b), 0 if there is none.
static size_t find_pair_before(const std::vector<int32_t> & text, size_t end, int32_t a, int32_t b) {
    size_t i = end - 1;
    while (i > 0 && !(text[i] == b && text[i - 1] == a)) {
        --i;
    }
    return i;
}

std::vector<int32_t> h2o_draft(const std::vector<int32_t> & text, uint32_t n_min, uint32_t n_max) {
    const size_t n     = text.size();
    const size_t limit = 2*(size_t) n_max;

    std::vector<int32_t> res;
    if (n < 3) {
        return res;
    }

    size_t n_match = 0;
    size_t next    = 0; // the position after the match
    for (size_t last = n - 1; n_match < limit && (last = find_pair_before(text, last, text[n - 2], text[n - 1])) > 0;
            ) {
        size_t n_same = 2;
        while (n_same < limit && n_same <= last && text[last - n_same] == text[n - 1 - n_same]) {
            n_same++;
        }
        if (n_same > n_match) {
            n_match = n_same;
            next    = last + 1;
        }
    }

    if (n_match/2 >= n_min) {
        while (res.size() < n_match/2) {
            const size_t i = next + res.size();
            res.push_back(i < n ? text[i] : res[i - n]);
        }
    }
    return res;
}
