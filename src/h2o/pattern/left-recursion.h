#pragma once

#include "llama-grammar.h"

#include <cstddef>

// Whether the expansion of some rule never ends: before it consumes a character it reaches itself, and something is
// left to follow each time, or it leads nowhere else. `rule` is one of these. If nothing is left to follow, as in
// repetitions of what can be empty, upstream meets the same stack again and ends. Takes linear time and does not
// recurse: a chain of rules can be as long as the text of a grammar.
bool h2o_find_left_recursion(const llama_grammar_rules & rules, size_t & rule);
