#pragma once

#include <cstdint>

// Properties of a code point, as bits: upstream's unicode_cpt_flags, and these of ours beyond them.
enum h2o_property : uint32_t {
    H2O_UPPERCASE_LETTER = 1u << 16, // \p{Lu}
    H2O_LOWERCASE_LETTER = 1u << 17, // \p{Ll}
    H2O_TITLECASE_LETTER = 1u << 18, // \p{Lt}
    H2O_OTHER_LETTER     = 1u << 19, // \p{Lm} and \p{Lo}
    H2O_DECIMAL_DIGIT    = 1u << 20, // \d
};
