#include "pattern/pattern.h"

#define ANY_CASE_END R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?)"
#define HAN_UPPER    R"((?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]-\p{sc:Han}]))"
#define HAN_LOWER    R"((?[[\p{Ll}\p{Lm}\p{Lo}\p{M}]-\p{sc:Han}]))"

std::string h2o_pre_tokenizer(std::string pattern) {
    struct rule {
        std::string part, ours;
        bool        is_all; // the pattern
    };
    static const rule rules[] = {
        // GPT-4o, Tekken and those like them, as in their tokenizer.json: upstream's letters have case in ASCII only
        { R"(((?=[\p{L}])([^a-z])))", R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])", false },
        { R"(((?=[\p{L}])([^A-Z])))", R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])", false },
        { R"(((?=[\p{L}\p{M}])([^a-z])))", R"((?[[\p{L}\p{M}]-[a-z]]))", false },
        { R"(((?=[\p{L}\p{M}])([^A-Z])))", R"((?[[\p{L}\p{M}]-[A-Z]]))", false },
        // names of functions of upstream's, which leave out marks and case, or ends of words: Kimi-K2, AFMoE, Tiny Aya
        { R"(\p{Han}+)",
          R"(\p{sc:Han}+|[^\r\n\p{L}\p{N}]?)" HAN_UPPER "*" HAN_LOWER "+" ANY_CASE_END
          R"(|[^\r\n\p{L}\p{N}]?)" HAN_UPPER "+" HAN_LOWER "*" ANY_CASE_END
          R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)", true },
        { R"(\p{AFMoE_digits})", R"((?<!\p{N})\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))|\G\p{N}{3})", true },
        { R"(\d{1,3}(?=(?:\d{3})*\b))",
          R"((?<!\d)\d{1,3}(?=(?:\d{3})*+(?![\p{Alphabetic}\p{M}\d\p{Pc}]))|\G(?<=\d)\d{3})", true },
        // the same pieces in linear time
        { R"((?=(\d{3})+(?!\d)))", R"((?<!\d)\d{0,2}\K(?=(?:\d{3})++(?!\d))|\G\d{3}\K(?=\d))", true },
        { R"(\s+$)", R"((?<!\s)\s+$)", true },
        { R"(\s*[\r\n]+|\s{512})", R"((?:[^\S\r\n]*+[\r\n]++)++|\s{512})", false },
    };
    for (const auto & [part, ours, is_all] : rules) {
        for (size_t at = 0; (!is_all || pattern == part) && (at = pattern.find(part, at)) != std::string::npos;) {
            pattern.replace(at, part.size(), ours);
            at += ours.size();
        }
    }
    return pattern;
}
