#include "h2o/pattern/match.h"

#include <algorithm>

h2o_matcher::h2o_matcher(const h2o_program & program, const uint32_t * text) : program(program), text(text) {}

void h2o_matcher::set_range(uint32_t new_first, uint32_t new_last) {
    first = new_first;
    last  = new_last;
    chars.assign(program.n_chars, {});
    repeats.assign((size_t) program.n_repeat*(last - first + 1), NOTHING);
}

bool h2o_matcher::match(uint32_t pos, uint32_t & end) {
    groups.clear();
    return run(0, pos, false, end);
}

bool h2o_matcher::find_group(uint32_t & pos) const {
    std::vector<uint32_t> ends(2*program.n_groups, 0);
    for (const saved & s : groups) {
        ends[s.slot] = s.pos;
    }
    for (size_t i = 0; i < ends.size(); i += 2) {
        if (ends[i] < ends[i + 1]) {
            pos = ends[i];
            return true;
        }
    }
    return false;
}

// Recurses only into a lookahead: as deeply as the pattern nests them.
bool h2o_matcher::run(uint32_t pc, uint32_t pos, bool ahead, uint32_t & end) {
    const size_t n_choices = choices.size();
    const size_t n_path    = path.size();
    while (true) {
        const h2o_instruction & now = program.code[pc];
        bool ok = true;
        switch (now.op) {
            case H2O_OP_CHAR:
                ok = pos < last && program.sets[now.set].contains(text[pos]);
                ++pos;
                ++pc;
                break;
            case H2O_OP_CHARS: {
                const h2o_charset & set = program.sets[now.set];
                const uint32_t low   = pos + now.min;
                const uint32_t limit = std::min(last - pos, now.max) + pos;
                const failed & known = chars[now.slot];
                while (pos < std::min(low, limit) && set.contains(text[pos])) {
                    ++pos;
                }
                ok = pos == low && !(now.max == H2O_MANY && known.low <= pos && pos <= known.high);
                ++pc;
                if (ok) {
                    // stops before ends from which the rest failed
                    const uint32_t stop =
                        now.max == H2O_MANY && known.low <= known.high && pos < known.low ? known.low - 1 : limit;
                    while (pos < stop && set.contains(text[pos])) {
                        ++pos;
                    }
                    if (pos > low) {
                        choose(pc, pos, low, pos);
                    }
                }
                break;
            }
            case H2O_OP_REPEAT: {
                const size_t i = (size_t) now.slot*(last - first + 1) + (pos - first);
                if (repeats[i] == MATCHES) {
                    pc = (uint32_t) program.code.size() - 1; // a MATCH; nobody asks for the end of a lookahead
                    break;
                }
                ok = repeats[i] == NOTHING;
                repeats[i] = FAILS; // until it matches
                if (ahead) {
                    path.push_back((uint32_t) i);
                }
            }
            // fall through
            case H2O_OP_SPLIT:
                if (ok) {
                    choose(pc + now.b, pos, pos, pos);
                    pc += now.a;
                }
                break;
            case H2O_OP_JUMP:
                pc += now.a;
                break;
            case H2O_OP_PEEK:
                ok = (pos < last && program.sets[now.set].contains(text[pos])) != now.negated;
                ++pc;
                break;
            case H2O_OP_LOOK: {
                uint32_t unused;
                ok = run(pc + 1, pos, true, unused) != now.negated;
                pc += now.a;
                break;
            }
            case H2O_OP_SAVE:
                if (!ahead) {
                    groups.push_back({ now.slot, pos });
                }
                ++pc;
                break;
            case H2O_OP_BEGIN:
                ok = pos == first;
                ++pc;
                break;
            case H2O_OP_END:
                ok = pos == last;
                ++pc;
                break;
            case H2O_OP_WORD: {
                const h2o_charset & set = program.sets[now.set];
                ok = (pos > first && set.contains(text[pos - 1])) != (pos < last && set.contains(text[pos]));
                ++pc;
                break;
            }
            case H2O_OP_MATCH:
                for (size_t i = n_path; i < path.size(); ++i) {
                    repeats[path[i]] = MATCHES;
                }
                choices.resize(n_choices);
                path.resize(n_path);
                end = pos;
                return true;
        }
        if (!ok && !go_back(n_choices, pc, pos)) {
            path.resize(n_path);
            return false;
        }
    }
}

void h2o_matcher::choose(uint32_t pc, uint32_t pos, uint32_t low, uint32_t high) {
    choices.push_back({ pc, pos, low, high, (uint32_t) path.size(), (uint32_t) groups.size() });
}

// Returns to the last choice above the first `n_choices` that has an alternative left.
bool h2o_matcher::go_back(size_t n_choices, uint32_t & pc, uint32_t & pos) {
    while (choices.size() > n_choices) {
        choice & c = choices.back();
        path.resize(c.n_path);
        groups.resize(c.n_saved);
        pc = c.pc;
        if (c.low == c.high) { // a SPLIT's
            pos = c.pos;
            choices.pop_back();
            return true;
        }
        if (c.pos > c.low) {
            pos = --c.pos;
            return true;
        }
        failed & known = chars[program.code[pc - 1].slot];
        known = { c.low, known.low == c.high + 1 ? known.high : c.high };
        choices.pop_back();
    }
    return false;
}
