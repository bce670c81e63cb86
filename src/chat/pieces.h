#pragma once

#include "chat.h"
#include "llama.h"

#include <string>
#include <vector>

// Names of special tokens in the messages of a chat are text: only the template's are these tokens. So a document that
// quotes a template cannot end the message that it is in, call a tool, or speak for somebody else.

// Part of a prompt, to be tokenized without the others.
struct h2o_chat_piece {
    std::string text;
    bool        parse_special; // whether names of special tokens are these tokens
    bool        is_marker = false; // it stands for an image, or a sound
};

// `prompt`, which the templates have made of `inputs`, in pieces. One piece if no message has a name of a special
// token.
//
// Special tokens are control tokens and markup: names in the template's source that the vocabulary counts as text, such
// as Qwen's <tool_call>. In the assistant's messages markup stays tokens, because the assistant has written it so.
std::vector<h2o_chat_piece> h2o_chat_pieces(const llama_vocab * vocab, const common_chat_templates * templates,
        common_chat_templates_inputs inputs, const std::string & prompt);

// The pieces with markers, each of them one. An empty marker is nowhere.
std::vector<h2o_chat_piece> h2o_chat_cut(const std::vector<h2o_chat_piece> & pieces, const std::string & marker);

// The tokens of these pieces, between the tokens that the vocabulary puts around every text. Each marker becomes
// LLAMA_TOKEN_NULL.
std::vector<llama_token> h2o_chat_tokens(
        const llama_vocab * vocab, const std::vector<h2o_chat_piece> & pieces, const std::string & marker = "");
