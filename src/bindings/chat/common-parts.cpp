// What upstream's chat code calls of the rest of `common`: its own files would bring downloads, samplers and drafts with them,
// and a log with a thread of its own.

#include "common.h"
#include "log.h"

#include "bindings/llama-call.h"

#include <cstdarg>
#include <cstdio>
#include <stdexcept>

std::string string_join(const std::vector<std::string> & values, const std::string & separator) {
    std::string result;
    for (size_t i = 0; i < values.size(); ++i) {
        result += (i > 0 ? separator : "") + values[i];
    }
    return result;
}

std::vector<std::string> string_split(const std::string & str, const std::string & delimiter) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t end; (end = str.find(delimiter, begin)) != std::string::npos; begin = end + delimiter.size()) {
        parts.push_back(str.substr(begin, end - begin));
    }
    parts.push_back(str.substr(begin));
    return parts;
}

std::string string_repeat(const std::string & str, size_t n) {
    std::string result;
    for (size_t i = 0; i < n; ++i) {
        result += str;
    }
    return result;
}

void string_replace_all(std::string & s, const std::string & search, const std::string & replace) {
    for (size_t pos = 0; (pos = s.find(search, pos)) != std::string::npos; pos += replace.size()) {
        s.replace(pos, search.size(), replace);
    }
}

std::vector<llama_token> common_tokenize(const llama_vocab * vocab, const std::string & text, bool add_special, bool parse_special) {
    std::vector<llama_token> tokens(text.size() + 4);
    int32_t n = llama_tokenize(vocab, text.data(), text.size(), tokens.data(), tokens.size(), add_special, parse_special);
    if (n < 0) {
        tokens.resize(-n);
        n = llama_tokenize(vocab, text.data(), text.size(), tokens.data(), tokens.size(), add_special, parse_special);
    }
    if (n < 0) {
        throw std::runtime_error("the text cannot be tokenized");
    }
    tokens.resize(n);
    return tokens;
}

std::string common_token_to_piece(const llama_vocab * vocab, llama_token token, bool special) {
    std::string piece(64, '\0');
    int32_t n = llama_token_to_piece(vocab, token, piece.data(), piece.size(), 0, special);
    if (n < 0) {
        piece.resize(-n);
        n = llama_token_to_piece(vocab, token, piece.data(), piece.size(), 0, special);
    }
    piece.resize(n);
    return piece;
}

// --- the log: to that of the llama_call of this thread

int common_log_get_verbosity_thold() {
    return LOG_LEVEL_WARN;
}

common_log * common_log_main() {
    return nullptr;
}

void common_log_add(common_log * /*log*/, ggml_log_level level, const char * fmt, ...) {
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    llama_call::on_log(level, line, nullptr);
}
