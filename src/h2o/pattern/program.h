#pragma once

#include "h2o/pattern/charset.h"

#include <cstdint>
#include <string>
#include <vector>

enum h2o_op : uint8_t {
    H2O_OP_CHAR,   // consume one character of the set
    H2O_OP_CHARS,  // consume `min` to `max` characters of the set; as many as possible, fewer if the rest then fails
    H2O_OP_SPLIT,  // continue at +a; at +b if that fails
    H2O_OP_REPEAT, // a SPLIT that remembers where it failed: after a repeated group, and everywhere with `groups`
    H2O_OP_JUMP,   // continue at +a
    H2O_OP_PEEK,   // require a next character in the set
    H2O_OP_LOOK,   // require that the instructions from here to the next MATCH match here; continue at +a
    H2O_OP_SAVE,   // save the position in `slot`: 2*group for its beginning, 2*group + 1 for its end
    H2O_OP_BEGIN,  // require the beginning of the text
    H2O_OP_END,    // require the end of the text
    H2O_OP_WORD,   // require that a word, made of the set's characters, begins or ends here
    H2O_OP_MATCH,  // the end of the pattern or of a lookahead
};

static constexpr uint32_t H2O_MANY = UINT32_MAX;

struct h2o_instruction {
    h2o_op   op;
    bool     negated = false; // PEEK, LOOK: require the contrary
    uint32_t set     = 0;     // which charset
    uint32_t slot    = 0;     // CHARS, REPEAT: their number among instructions of this kind
    uint32_t min     = 0;
    uint32_t max     = 0;
    int32_t  a       = 0;     // relative, so that code can be copied
    int32_t  b       = 0;
};

// A regular expression: characters, classes, groups, alternatives (the first that matches counts), quantifiers, greedy
// or not, lookahead, \s \S \d \D \w \W \p{..} \b ^ and $. No references to groups and no looking back.
struct h2o_program {
    std::vector<h2o_instruction> code;
    std::vector<h2o_charset>     sets;
    uint32_t n_chars  = 0; // slots
    uint32_t n_repeat = 0;
    uint32_t n_groups = 0;
};

// `groups` to save where groups begin and end. Throws std::invalid_argument, which names the unsupported part of the
// pattern.
h2o_program h2o_parse_pattern(const std::string & pattern, bool groups);
