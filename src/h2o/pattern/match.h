#pragma once

#include "h2o/pattern/program.h"

// Matches a program at one position of a text after the other. It backtracks on a stack of its own, so a long text does
// not overflow a thread's stack. It remembers positions where the rest of the program failed, so the time is linear in
// the text.
class h2o_matcher {
public:
    // both must stay
    h2o_matcher(const h2o_program & program, const uint32_t * text);

    // restricts the text to the characters from `first` to `last` - 1
    void set_range(uint32_t first, uint32_t last);

    // whether the program matches at `pos`, and where the match ends
    bool match(uint32_t pos, uint32_t & end);

    // the beginning of the first nonempty group in the last match; false if there is none
    bool find_group(uint32_t & pos) const;

private:
    enum known : uint8_t { NOTHING, FAILS, MATCHES };

    // An alternative to try on failure. For CHARS, low < high: they end at `pos` now, and can end anywhere from `low`
    // to `high`.
    struct choice {
        uint32_t pc; // the next instruction
        uint32_t pos;
        uint32_t low;
        uint32_t high;
        uint32_t n_path;
        uint32_t n_saved;
    };

    struct saved {
        uint32_t slot;
        uint32_t pos;
    };

    // Positions from which the rest of the program does not match.
    struct failed {
        uint32_t low  = 1;
        uint32_t high = 0;
    };

    const h2o_program & program;
    const uint32_t * const text;
    uint32_t first = 0;
    uint32_t last  = 0;

    std::vector<choice>   choices;
    std::vector<failed>   chars;   // for each CHARS
    std::vector<known>    repeats; // for each REPEAT, at each position
    std::vector<uint32_t> path;    // indices of the repeats on the current path through a lookahead
    std::vector<saved>    groups;  // group boundaries on the current path

    bool run(uint32_t pc, uint32_t pos, bool ahead, uint32_t & end);
    void choose(uint32_t pc, uint32_t pos, uint32_t low, uint32_t high);
    bool go_back(size_t n_choices, uint32_t & pc, uint32_t & pos);
};
