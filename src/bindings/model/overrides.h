#pragma once

#include "llama.h"

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

// Metadata by its key, in the place of the file's.
using kv_overrides = std::map<std::string, std::variant<bool, int64_t, double, std::string>>;

// as llama.cpp takes them; the last is empty
std::vector<llama_model_kv_override> to_llama(const kv_overrides & overrides);

// as llama.cpp prints metadata of a file
std::string to_text(const kv_overrides::mapped_type & value);

// The key of an override that this line of llama.cpp's log says was used, "" if it says something else.
std::string used_override(const std::string & line);
