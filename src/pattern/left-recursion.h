#pragma once

#include "llama-grammar.h"

#include <cstddef>
#include <vector>

// Whether the expansion of a rule may never end: before it consumes a character, it or a rule that it begins with
// reaches itself. Allowed is a repetition of something that can be empty, `a ::= b a | ""`: upstream meets the same
// stack again and ends. Takes linear time for all rules together and does not recurse: a chain of rules can be as long
// as the text of a grammar. `visited` and `can_be_empty` are the results for the rules so far. Also true for a rule
// that can begin at too many places: at each of them the sampler looks at every token. The log says which it is.
bool h2o_is_left_recursive(const llama_grammar_rules & rules, size_t rule, std::vector<bool> & visited,
        std::vector<bool> & in_progress, std::vector<bool> & can_be_empty);
