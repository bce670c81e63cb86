#pragma once

#include "llama-grammar.h"

#include <cstddef>

// Whether a rule of a grammar can reach itself before it consumes a character, with something left to follow: its expansion would not
// end. Where nothing follows, as in repetitions of what can be empty, upstream sees the same stack again and goes on. `rule` is one
// such rule. Takes linear time and does not recurse: a chain of rules can be as long as the text of a grammar.
bool h2o_find_left_recursion(const llama_grammar_rules & rules, size_t & rule);
