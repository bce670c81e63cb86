#pragma once

#include "bindings/model/model.h"

#include <memory>
#include <string>
#include <vector>

// What may be generated, in llama.cpp's GBNF. Checked once; each text needs a sampler of its own.
class grammar {
public:
    // lazy: it applies from a trigger on, which is a token or the first group of a pattern's match. prefill: tokens of
    // the prompt that it describes already. Throws std::invalid_argument if the text is not a grammar.
    grammar(
        std::shared_ptr<model> mdl, std::string text, bool lazy = false, std::vector<std::string> trigger_patterns = {},
        std::vector<llama_token> trigger_tokens = {}, std::vector<llama_token> prefill = {});

    std::shared_ptr<llama_sampler> make_sampler() const;

    const std::string text;
    const bool        lazy;

private:
    const std::shared_ptr<model>   mdl;
    const std::vector<std::string> trigger_patterns;
    const std::vector<llama_token> trigger_tokens;
    const std::vector<llama_token> prefill;
};
