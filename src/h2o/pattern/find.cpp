#include "h2o/pattern/find.h"

#include "h2o/pattern/match.h"

#include "unicode.h"

#include <stdexcept>

size_t h2o_find(const h2o_program & pattern, const std::string & text) {
    const std::vector<uint32_t> cpts = unicode_cpts_from_utf8(text);
    const uint32_t last = (uint32_t) cpts.size();
    h2o_matcher matcher(pattern, cpts.data());
    matcher.set_range(0, last);
    for (uint32_t pos = 0; pos <= last; ++pos) {
        uint32_t end;
        if (!matcher.match(pos, end)) {
            continue;
        }
        uint32_t begin = pos;
        matcher.find_group(begin);
        size_t bytes = 0;
        for (uint32_t i = 0; i < begin; ++i) {
            try {
                unicode_cpt_from_utf8(text, bytes);
            } catch (const std::invalid_argument &) {
                ++bytes;
            }
        }
        return bytes;
    }
    return std::string::npos;
}
