#include "chat/pieces.h"

#include "common.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <functional>
#include <set>

// The first character of a private plane, which no vocabulary and no template knows: some stand for names in messages.
static constexpr uint32_t FIRST_STAND_IN = 0xF0000;

namespace {

struct special_name {
    std::string text;
    bool        is_control; // or a token that the vocabulary counts as text
    std::string stand_in;
};

using special_names = std::vector<special_name>;

} // namespace

static std::string utf8(uint32_t character) {
    return { (char) (0xF0 | character >> 18), (char) (0x80 | (character >> 12 & 63)),
        (char) (0x80 | (character >> 6 & 63)), (char) (0x80 | (character & 63)) };
}

// the text in a string of JSON
static std::string escaped(std::string text) {
    string_replace_all(text, "\\", "\\\\");
    string_replace_all(text, "\"", "\\\"");
    return text;
}

// calls f(text, is_json, is_the_models) for all that a message says
static void for_texts(common_chat_msg & message, const std::function<void(std::string &, bool, bool)> & f) {
    const bool is_the_models = message.role == "assistant";

    f(message.role,              false, false);
    f(message.content,           false, is_the_models);
    f(message.reasoning_content, false, is_the_models);
    f(message.tool_name,         false, false);
    f(message.tool_call_id,      false, false);
    for (auto & part : message.content_parts) {
        if (part.type == "text") {
            f(part.text, false, is_the_models);
        }
    }
    for (auto & call : message.tool_calls) {
        f(call.name,      false, false);
        f(call.arguments, true,  false);
        f(call.id,        false, false);
    }
}

// the special tokens in a text, longer names first
static special_names names_in(
        const llama_vocab * vocab, const common_chat_templates * templates, const std::string & text) {
    const std::string source =
        common_chat_templates_source(templates) + common_chat_templates_source(templates, "tool_use");
    const auto ids = common_tokenize(vocab, text, false, true);

    special_names names;
    for (const llama_token id : std::set<llama_token>(ids.begin(), ids.end())) {
        const auto attr = llama_vocab_get_attr(vocab, id);
        const bool is_control = attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN);
        if (!is_control && !(attr & LLAMA_TOKEN_ATTR_USER_DEFINED)) {
            continue;
        }
        const std::string name = common_token_to_piece(vocab, id, true);
        const bool is_blank = std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isspace(c); });
        if (!is_blank && (is_control || source.find(name) != std::string::npos)) {
            names.push_back({ name, is_control, "" });
        }
    }
    std::sort(names.begin(), names.end(), [](const auto & a, const auto & b) { return a.text.size() > b.text.size(); });
    return names;
}

// calls f(begin, end) for every name in the text, from left to right; f returns where the search continues
static void for_names(
        const std::string & text, const special_names & names, const std::function<size_t(size_t, size_t)> & f) {
    std::vector<size_t> found(names.size(), 0); // the next place of each
    std::vector<bool>   is_found(names.size(), false);
    for (size_t pos = 0;;) {
        size_t best = std::string::npos, end = 0;
        for (size_t i = 0; i < names.size(); ++i) {
            if (!is_found[i] || (found[i] != std::string::npos && found[i] < pos)) {
                found[i]    = text.find(names[i].text, pos);
                is_found[i] = true;
            }
            if (found[i] < best) { // of two at the same place the longer one
                best = found[i];
                end  = best + names[i].text.size();
            }
        }
        if (best == std::string::npos) {
            return;
        }
        pos = f(best, end);
    }
}

// A text without special tokens. The tokenizer always finds markup, so its names are cut.
static void add_text(std::vector<h2o_chat_piece> & pieces, const std::string & text, special_names names) {
    names.erase(
        std::remove_if(names.begin(), names.end(), [](const auto & name) { return name.is_control; }), names.end());
    size_t begin = 0;
    for_names(text, names, [&](size_t at, size_t /*end*/) {
        size_t cut = at + 1;
        while ((text[cut] & 0xC0) == 0x80) {
            ++cut;
        }
        pieces.push_back({ text.substr(begin, cut - begin), false });
        return begin = cut;
    });
    pieces.push_back({ text.substr(begin), false });
}

std::vector<h2o_chat_piece> h2o_chat_pieces(const llama_vocab * vocab, const common_chat_templates * templates,
        common_chat_templates_inputs inputs, const std::string & prompt) {
    special_names all = names_in(vocab, templates, prompt);
    special_names said;
    uint32_t next = FIRST_STAND_IN;
    for (auto & name : all) {
        bool is_said = false;
        for (auto & message : inputs.messages) {
            for_texts(message, [&](const std::string & text, bool is_json, bool is_the_models) {
                const std::string & written = is_json ? escaped(name.text) : name.text;
                is_said = is_said || ((name.is_control || !is_the_models) && text.find(written) != std::string::npos);
            });
        }
        if (is_said) {
            do {
                name.stand_in = utf8(next++);
            } while (prompt.find(name.stand_in) != std::string::npos);
            said.push_back(name);
        }
    }
    if (said.empty()) {
        return { { prompt, true } };
    }

    for (auto & message : inputs.messages) {
        for_texts(message, [&](std::string & text, bool is_json, bool is_the_models) {
            for (const auto & name : said) {
                if (name.is_control || !is_the_models) {
                    string_replace_all(text, is_json ? escaped(name.text) : name.text, name.stand_in);
                }
            }
        });
    }
    const std::string text = common_chat_templates_apply(templates, inputs).prompt;

    // A tokenizer reads the text between two special tokens as a whole. So the prompt is cut at special tokens.
    std::vector<h2o_chat_piece> pieces = { { "", true } };
    const auto add = [&](std::string part) {
        bool has_names = false;
        for (const auto & name : said) {
            if (part.find(name.stand_in) != std::string::npos) {
                string_replace_all(part, name.stand_in, name.text);
                has_names = true;
            }
        }
        if (has_names) {
            add_text(pieces, part, all);
        } else if (pieces.back().parse_special) {
            pieces.back().text += part;
        } else {
            pieces.push_back({ part, true });
        }
    };
    size_t begin = 0;
    for_names(text, names_in(vocab, templates, text), [&](size_t at, size_t end) {
        add(text.substr(begin, at - begin));
        add(text.substr(at, end - at));
        return begin = end;
    });
    add(text.substr(begin));
    return pieces;
}

std::vector<h2o_chat_piece> h2o_chat_cut(const std::vector<h2o_chat_piece> & pieces, const std::string & marker) {
    std::vector<h2o_chat_piece> res;
    for (const auto & piece : pieces) {
        size_t begin = 0, end = 0;
        while (!marker.empty() && (end = piece.text.find(marker, begin)) != std::string::npos) {
            res.push_back({ piece.text.substr(begin, end - begin), piece.parse_special });
            res.push_back({ marker, false, true });
            begin = end + marker.size();
        }
        res.push_back({ piece.text.substr(begin), piece.parse_special });
    }
    return res;
}

std::vector<llama_token> h2o_chat_tokens(
        const llama_vocab * vocab, const std::vector<h2o_chat_piece> & pieces, const std::string & marker) {
    const auto cut = h2o_chat_cut(pieces, marker);
    if (cut.size() == 1) {
        return common_tokenize(vocab, cut[0].text, true, cut[0].parse_special);
    }
    // the tokens around every text
    const auto inner = common_tokenize(vocab, "a", false, false);
    const auto whole = common_tokenize(vocab, "a", true, true);
    const auto at    = std::search(whole.begin(), whole.end(), inner.begin(), inner.end());

    std::vector<llama_token> tokens(whole.begin(), at);
    for (const auto & piece : cut) {
        const auto ids = piece.is_marker ? std::vector<llama_token> { LLAMA_TOKEN_NULL } :
            common_tokenize(vocab, piece.text, false, piece.parse_special);
        tokens.insert(tokens.end(), ids.begin(), ids.end());
    }
    tokens.insert(tokens.end(), at + inner.size(), whole.end());
    return tokens;
}
