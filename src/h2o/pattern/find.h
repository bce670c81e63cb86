#pragma once

#include "h2o/pattern/program.h"

#include <cstddef>
#include <string>

// Finds a pattern's first match in a text. Returns the byte where its first nonempty group begins, where the match
// begins if it has none, and std::string::npos without a match.
size_t h2o_find(const h2o_program & pattern, const std::string & text);
