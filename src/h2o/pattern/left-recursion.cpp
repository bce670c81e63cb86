#include "h2o/pattern/left-recursion.h"

#include <algorithm>
#include <cstdint>
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

static std::vector<bool> find_empty(size_t n_rules, const std::vector<alternative> & alternatives) {
    std::vector<std::vector<uint32_t>> users(n_rules); // alternatives that would be empty if this rule and others were
    std::vector<size_t> n_left(alternatives.size());   // references that are not known to be empty
    std::vector<uint32_t> todo;
    std::vector<bool> can_be_empty(n_rules);

    const auto add = [&](uint32_t rule) {
        if (!can_be_empty[rule]) {
            can_be_empty[rule] = true;
            todo.push_back(rule);
        }
    };
    for (uint32_t i = 0; i < alternatives.size(); ++i) {
        const auto & a = alternatives[i];
        if (!a.only_references) {
            continue;
        }
        n_left[i] = a.references.size();
        for (const uint32_t rule : a.references) {
            users[rule].push_back(i);
        }
        if (a.references.empty()) {
            add(a.rule);
        }
    }
    while (!todo.empty()) {
        const uint32_t rule = todo.back();
        todo.pop_back();
        for (const uint32_t i : users[rule]) {
            if (--n_left[i] == 0) {
                add(alternatives[i].rule);
            }
        }
    }
    return can_be_empty;
}

// What a rule can begin with. The stack grows if something follows the reference.
struct beginning {
    uint32_t rule;
    bool grows;
};

static std::vector<std::vector<beginning>> beginnings_of(
        const std::vector<alternative> & alternatives, const std::vector<bool> & can_be_empty) {
    std::vector<std::vector<beginning>> result(can_be_empty.size());
    for (const alternative & a : alternatives) {
        for (size_t i = 0; i < a.references.size(); ++i) {
            const bool is_last = a.only_references && i + 1 == a.references.size();
            result[a.rule].push_back({ a.references[i], !is_last });
            if (!can_be_empty[a.references[i]]) {
                break;
            }
        }
    }
    return result;
}

// The strongly connected component of each rule, by Tarjan's algorithm: rules that reach each other share a number.
static std::vector<uint32_t> components_of(const std::vector<std::vector<beginning>> & beginnings) {
    const uint32_t n = beginnings.size();
    std::vector<uint32_t> component(n, n), order(n, n), lowest(n), path, open;
    std::vector<size_t> n_done(n);
    uint32_t n_seen = 0;

    const auto begin = [&](uint32_t rule) {
        order[rule] = lowest[rule] = n_seen++;
        path.push_back(rule);
        open.push_back(rule);
    };
    for (uint32_t first = 0; first < n; ++first) {
        if (order[first] == n) {
            begin(first);
        }
        while (!path.empty()) {
            const uint32_t rule = path.back();
            if (n_done[rule] < beginnings[rule].size()) {
                const uint32_t next = beginnings[rule][n_done[rule]++].rule;
                if (order[next] == n) {
                    begin(next);
                } else if (component[next] == n) {
                    lowest[rule] = std::min(lowest[rule], order[next]);
                }
                continue;
            }
            path.pop_back();
            if (!path.empty()) {
                lowest[path.back()] = std::min(lowest[path.back()], lowest[rule]);
            }
            if (lowest[rule] == order[rule]) {
                for (uint32_t member = n; member != rule; open.pop_back()) {
                    member = open.back();
                    component[member] = rule;
                }
            }
        }
    }
    return component;
}

// Rules that can begin with a character. A rule that cannot, and cannot be empty, only leads to itself: no stack would
// be left.
static std::vector<bool> find_begun(const std::vector<alternative> & alternatives,
        const std::vector<bool> & can_be_empty, const std::vector<std::vector<beginning>> & beginnings) {
    std::vector<std::vector<uint32_t>> users(beginnings.size());
    for (uint32_t i = 0; i < beginnings.size(); ++i) {
        for (const beginning & b : beginnings[i]) {
            users[b.rule].push_back(i);
        }
    }
    std::vector<bool> begun(beginnings.size());
    std::vector<uint32_t> todo;

    const auto add = [&](uint32_t rule) {
        if (!begun[rule]) {
            begun[rule] = true;
            todo.push_back(rule);
        }
    };
    for (const alternative & a : alternatives) {
        if (!a.only_references &&
            std::all_of(a.references.begin(), a.references.end(), [&](uint32_t r) { return can_be_empty[r]; })) {
            add(a.rule);
        }
    }
    while (!todo.empty()) {
        const uint32_t rule = todo.back();
        todo.pop_back();
        for (const uint32_t user : users[rule]) {
            add(user);
        }
    }
    return begun;
}

bool h2o_find_left_recursion(const llama_grammar_rules & rules, size_t & rule) {
    const auto alternatives = alternatives_of(rules);
    const auto can_be_empty = find_empty(rules.size(), alternatives);
    const auto beginnings   = beginnings_of(alternatives, can_be_empty);
    const auto begun        = find_begun(alternatives, can_be_empty, beginnings);
    const auto component    = components_of(beginnings);

    for (uint32_t i = 0; i < rules.size(); ++i) {
        if (!can_be_empty[i] && !begun[i]) {
            rule = i;
            return true;
        }
        for (const beginning & b : beginnings[i]) {
            if (b.grows && component[b.rule] == component[i]) {
                rule = i;
                return true;
            }
        }
    }
    return false;
}
