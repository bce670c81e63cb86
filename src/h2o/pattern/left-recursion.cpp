#include "h2o/pattern/left-recursion.h"

#include <cstdint>
#include <utility>
#include <vector>

// One alternative of a rule, and the references to rules that it begins with.
struct alternative {
    uint32_t rule;
    std::vector<uint32_t> references;
    bool only_references; // nothing else follows
};

static std::vector<alternative> alternatives_of(const llama_grammar_rules & rules) {
    std::vector<alternative> result;
    for (uint32_t i = 0; i < rules.size(); ++i) {
        result.push_back({ i, {}, true });
        for (const llama_grammar_element & element : rules[i]) {
            if (element.type == LLAMA_GRETYPE_ALT) {
                result.push_back({ i, {}, true });
            } else if (element.type == LLAMA_GRETYPE_RULE_REF && result.back().only_references) {
                result.back().references.push_back(element.value);
            } else if (element.type != LLAMA_GRETYPE_END) {
                result.back().only_references = false;
            }
        }
    }
    return result;
}

bool h2o_find_left_recursion(const llama_grammar_rules & rules, size_t & rule) {
    const auto alternatives = alternatives_of(rules);

    // Only rules with an empty alternative of their own count, as upstream: grammars of tools repeat groups that are empty by other
    // rules. Such a repetition ends its rule, so it adds nothing to a stack.
    std::vector<bool> can_be_empty(rules.size());
    for (const alternative & a : alternatives) {
        if (a.only_references && a.references.empty()) {
            can_be_empty[a.rule] = true;
        }
    }

    std::vector<std::vector<uint32_t>> leftmost(rules.size()); // what a rule can begin with
    for (const alternative & a : alternatives) {
        for (const uint32_t next : a.references) {
            leftmost[a.rule].push_back(next);
            if (!can_be_empty[next]) {
                break;
            }
        }
    }

    enum { NEW, OPEN, DONE };
    std::vector<uint8_t> state(rules.size(), NEW);
    std::vector<std::pair<uint32_t, size_t>> path; // a rule, and how many of its leftmost are done
    for (uint32_t first = 0; first < rules.size(); ++first) {
        if (state[first] != NEW) {
            continue;
        }
        path.push_back({ first, 0 });
        state[first] = OPEN;
        while (!path.empty()) {
            auto & [now, i] = path.back();
            if (i == leftmost[now].size()) {
                state[now] = DONE;
                path.pop_back();
                continue;
            }
            const uint32_t next = leftmost[now][i++];
            if (state[next] == OPEN) {
                rule = next;
                return true;
            }
            if (state[next] == NEW) {
                state[next] = OPEN;
                path.push_back({ next, 0 });
            }
        }
    }
    return false;
}
