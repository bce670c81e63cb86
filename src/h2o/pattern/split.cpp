#include "h2o/pattern/split.h"

#include "h2o/pattern/match.h"

#include <mutex>
#include <unordered_map>

// Every pattern is parsed once. They come from the source, so there are few.
static const h2o_program & program_of(const std::string & pattern) {
    static std::mutex mutex;
    static std::unordered_map<std::string, h2o_program> programs;
    const std::lock_guard<std::mutex> lock(mutex);
    auto it = programs.find(pattern);
    if (it == programs.end()) {
        it = programs.emplace(pattern, h2o_parse_pattern(pattern, false)).first;
    }
    return it->second;
}

std::vector<size_t> h2o_split(
        const std::vector<uint32_t> & text, const std::string & pattern, const std::vector<size_t> & sizes) {
    if (text.empty()) {
        return sizes;
    }
    h2o_matcher matcher(program_of(pattern), text.data());
    std::vector<size_t> result;
    result.reserve(sizes.size());
    uint32_t cut = 0; // where the next piece begins
    const auto cut_at = [&](uint32_t pos) {
        if (pos > cut) {
            result.push_back(pos - cut);
            cut = pos;
        }
    };
    for (const size_t size : sizes) {
        const uint32_t last = cut + (uint32_t) size;
        matcher.set_range(cut, last);
        uint32_t pos = cut;
        while (pos < last) {
            uint32_t end;
            if (!matcher.match(pos, end)) {
                ++pos;
                continue;
            }
            cut_at(pos);
            cut_at(end);
            pos += end > pos ? end - pos : 1; // an empty match cuts, too
        }
        cut_at(last);
    }
    return result;
}
