#pragma once

#include "bindings/model/overrides.h"

#include <string>

// Throws std::invalid_argument, with the reason, for a file that is no GGUF model or is cut off, or has what would end the process
// in a kernel or an assertion. All else is left to the loader. where begins the message, such as "[Llama] ".
void gguf_check(const std::string & path, const std::string & where);

// The same for a projector, see projector.h.
void gguf_check_projector(const std::string & path, const std::string & where);

// Throws std::invalid_argument, which names the override, where one is not of the kind of the value in the file, or puts there what
// gguf_check() would refuse. Says nothing of a file that is no GGUF.
void gguf_check_overrides(const std::string & path, const kv_overrides & overrides);
