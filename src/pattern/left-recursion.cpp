#include "pattern/left-recursion.h"

#include "llama-impl.h"

#include <algorithm>
#include <cstdint>

// More places cost seconds for each generated token, for all who share the context.
static constexpr size_t MAX_PLACES = 1000;

// A rule that is being read.
struct reading {
    size_t rule;
    size_t element        = 0;
    bool   only_empty     = true;  // what the alternative has before the element can be empty
    bool   repeats_itself = false; // an alternative ends with the rule, and all before it can be empty
    size_t n_places       = 0;     // at which a text of it can begin
};

static bool is_end(const llama_grammar_element & element) {
    return element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT;
}

bool h2o_is_left_recursive(const llama_grammar_rules & rules, size_t rule, std::vector<bool> & visited,
        std::vector<bool> & in_progress, std::vector<bool> & can_be_empty) {
    static thread_local std::vector<size_t> n_places; // of the rules that were visited
    n_places.resize(std::max(n_places.size(), rules.size()));

    std::vector<reading> path;
    const auto begin = [&](size_t next) {
        visited[next] = in_progress[next] = true;
        path.push_back({ next });
    };
    begin(rule);
    while (!path.empty()) {
        reading & current = path.back();
        const llama_grammar_element & element = rules[current.rule][current.element];
        if (is_end(element)) {
            can_be_empty[current.rule] = can_be_empty[current.rule] || current.only_empty;
            current.only_empty = true;
            if (element.type == LLAMA_GRETYPE_END) {
                if (current.repeats_itself && !can_be_empty[current.rule]) {
                    break;
                }
                if (current.n_places > MAX_PLACES) {
                    LLAMA_LOG_ERROR("unsupported grammar: a text can begin at %zu places in its rule %zu, of at most "
                        "%zu. Have fewer alternatives, or put their common beginning before them\n",
                        current.n_places, current.rule, MAX_PLACES);
                    return true;
                }
                n_places[current.rule]    = current.n_places;
                in_progress[current.rule] = false;
                path.pop_back();
                continue;
            }
        } else if (element.type != LLAMA_GRETYPE_RULE_REF) {
            current.n_places  += current.only_empty;
            current.only_empty = false;
        } else if (current.only_empty) {
            const size_t next = element.value;
            if (!visited[next]) {
                begin(next); // and reads this element again
                continue;
            }
            if (in_progress[next]) {
                if (next != current.rule || !is_end(rules[current.rule][current.element + 1])) {
                    break;
                }
                current.repeats_itself = true;
            } else {
                current.n_places = std::min(current.n_places + n_places[next], SIZE_MAX/2);
            }
            current.only_empty = !in_progress[next] && can_be_empty[next];
        }
        current.element++;
    }
    if (!path.empty()) {
        LLAMA_LOG_ERROR("unsupported grammar, left recursion detected for nonterminal at index %zu\n", rule);
    }
    return !path.empty();
}
