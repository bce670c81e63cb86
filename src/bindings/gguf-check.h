#pragma once

#include <string>

// Throws std::invalid_argument, with the reason, for a file that is no valid GGUF model. What passes is safe to load:
// its metadata parses, its tensors lie within the file, and no kernel would meet a type or a shape that it cannot handle.
// where begins the message, such as "[Llama] ".
void gguf_check(const std::string & path, const std::string & where);
