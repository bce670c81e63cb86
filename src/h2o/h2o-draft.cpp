#include "h2o-draft.h"

#include <algorithm>

std::vector<int32_t> h2o_draft(const std::vector<int32_t> & text, uint32_t n_min, uint32_t n_max) {
    const size_t n     = text.size();
    const size_t limit = 2*(size_t) n_max;

    size_t n_match = 0;
    size_t next    = 0; // the position after the match
    for (size_t end = n; end-- > 1 && n_match < limit; ) {
        size_t n_same = 0;
        while (n_same < limit && n_same < end && text[end - 1 - n_same] == text[n - 1 - n_same]) {
            n_same++;
        }
        if (n_same > n_match) {
            n_match = n_same;
            next    = end;
        }
    }

    std::vector<int32_t> res;
    if (n_match/2 >= n_min) {
        while (res.size() < n_match/2) {
            const size_t i = next + res.size();
            res.push_back(i < n ? text[i] : res[i - n]);
        }
    }
    return res;
}
