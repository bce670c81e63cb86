#pragma once

#include <string>

// Throws std::invalid_argument, with the reason, for a file that is no GGUF model or is cut off, or has what would end the process
// in a kernel or an assertion. All else is left to the loader. where begins the message, such as "[Llama] ".
void gguf_check(const std::string & path, const std::string & where);
