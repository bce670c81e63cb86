#include "pattern/pattern.h"

#include "unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 32
#include "pcre2.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

static constexpr size_t MAX_COMPILED = 1 << 20; // bytes
static constexpr size_t MAX_CODES    = 64;

using code       = std::shared_ptr<pcre2_code>;
using match_data = std::shared_ptr<pcre2_match_data>;

static std::string message(int error) {
    PCRE2_UCHAR text[256];
    const int length = pcre2_get_error_message(error, text, 256);
    return std::string(text, text + std::max(length, 0));
}

static code compile(const std::string & pattern, uint32_t options) {
    const std::shared_ptr<pcre2_compile_context> limits(
        pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
    pcre2_set_max_pattern_compiled_length(limits.get(), MAX_COMPILED);
    const std::vector<uint32_t> cpts = unicode_cpts_from_utf8(pattern);
    int error;
    size_t at;
    const code result(
        pcre2_compile(cpts.data(), cpts.size(), options | PCRE2_DOLLAR_ENDONLY, &error, &at, limits.get()),
        pcre2_code_free);
    if (!result) {
        throw std::invalid_argument(
            "pattern '" + pattern + "', character " + std::to_string(at) + ": " + message(error));
    }
    return result;
}

// A pattern is compiled once for all pieces of a text, and once for all tokens of an answer.
static code compiled(const std::string & pattern, uint32_t options) {
    static std::mutex mutex;
    static std::map<std::pair<std::string, uint32_t>, code> codes;
    const std::lock_guard<std::mutex> lock(mutex);
    if (codes.size() >= MAX_CODES) {
        codes.clear();
    }
    code & result = codes[{ pattern, options }];
    return result = result ? result : compile(pattern, options);
}

static match_data make_match_data(const code & pattern) {
    return match_data(pcre2_match_data_create_from_pattern(pattern.get(), nullptr), pcre2_match_data_free);
}

// Whether it matches at `from` or later.
static bool match(const code & pattern, const uint32_t * text, size_t size, size_t from, uint32_t options,
        const match_data & data) {
    const int result = pcre2_match(pattern.get(), text, size, from, options, data.get(), nullptr);
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
        throw std::runtime_error("a pattern cannot be matched: " + message(result));
    }
    return result > 0;
}

std::vector<size_t> h2o_split(
        std::vector<uint32_t> text, const std::string & pattern, const std::vector<size_t> & sizes) {
    // \s of PCRE2 matches the Mongolian vowel separator, which was a space before Unicode 6.3
    std::replace(text.begin(), text.end(), 0x180E, 0x200B);

    const code expression = compiled(pattern, PCRE2_UCP);
    const match_data data = make_match_data(expression);
    const size_t * const place = pcre2_get_ovector_pointer(data.get());
    std::vector<size_t> result;
    const uint32_t * piece = text.data();
    for (const size_t size : sizes) {
        size_t cut = 0;
        const auto cut_at = [&](size_t pos) {
            if (pos > cut) {
                result.push_back(pos - cut);
                cut = pos;
            }
        };
        // an empty match cuts, too
        while (cut < size && match(expression, piece, size, cut, PCRE2_NOTEMPTY_ATSTART, data)) {
            cut_at(place[0]);
            cut_at(place[1]);
        }
        cut_at(size);
        piece += size;
    }
    return result;
}

size_t h2o_find(const std::string & pattern, const std::string & text) {
    const uint32_t ecmascript = PCRE2_ALT_BSUX | PCRE2_ALLOW_EMPTY_CLASS | PCRE2_MATCH_UNSET_BACKREF;
    compiled(pattern, ecmascript); // if it is wrong, the message has its own text
    // PCRE2 limits the steps from one place of the text: this one has only the first, and begins to match at \K
    const code anchored = compiled("(?s:.*?)\\K(?:" + pattern + ")", ecmascript | PCRE2_ANCHORED);
    const std::vector<uint32_t> cpts = unicode_cpts_from_utf8(text);
    const match_data data = make_match_data(anchored);
    if (!match(anchored, cpts.data(), cpts.size(), 0, 0, data)) {
        return std::string::npos;
    }
    const size_t * const places = pcre2_get_ovector_pointer(data.get());
    size_t begin = places[0];
    for (uint32_t i = 1; i < pcre2_get_ovector_count(data.get()); ++i) {
        if (places[2*i] < places[2*i + 1]) {
            begin = places[2*i];
            break;
        }
    }
    size_t bytes = 0;
    while (begin-- > 0) {
        try {
            unicode_cpt_from_utf8(text, bytes);
        } catch (const std::invalid_argument &) {
            ++bytes;
        }
    }
    return bytes;
}
