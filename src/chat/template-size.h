#pragma once

#include <stdexcept>
#include <vector>

// The parser of chat templates calls itself once for each token of a statement, and what executes it for each statement:
// more could be more than the stack holds. The longest known template has 300 statements of at most 150 tokens.
template <typename T>
void h2o_check_template(const std::vector<T> & tokens) {
    size_t n_statements = 0;
    size_t n_tokens     = 0;
    for (const auto & token : tokens) {
        if (token.t == T::open_statement || token.t == T::open_expression) {
            n_statements++;
            n_tokens = 0;
        }
        if (++n_tokens > 1000 || n_statements > 3000) {
            throw std::runtime_error("it is too long for a chat template");
        }
    }
}
