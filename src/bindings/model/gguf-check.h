#pragma once

#include "bindings/model/overrides.h"

#include <string>

// Throws std::invalid_argument, with the reason, for a file that is not a GGUF model, is cut off, or would end the
// process in a kernel or an assertion. Other checks are left to the loader. where begins the message: "[Llama] ".
void gguf_check(const std::string & path, const std::string & where);

// The same for a projector, see projector.h.
void gguf_check_projector(const std::string & path, const std::string & where);

// Throws std::invalid_argument, which names the override, where its kind is not that of the value in the file, or where
// gguf_check() would refuse the result. Accepts files that are not GGUF.
void gguf_check_overrides(const std::string & path, const kv_overrides & overrides);
