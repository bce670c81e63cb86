#pragma once

#include <stdexcept>
#include <string>

// What a caller would treat differently from other failures.
enum class h2o_reason {
    NONE,
    MEMORY,    // there is not enough
    MODEL,     // H2O does not work with this model, or not on its devices
    LOOKUP,    // lookups do not
    POSITIONS, // these positions do not
};

// llama.cpp catches exceptions, and returns NULL or a status: so this thread knows the reason of the last one.
struct h2o_refusal : std::runtime_error {
    h2o_refusal(h2o_reason reason, const std::string & what);
};

void       h2o_set_reason(h2o_reason reason);
h2o_reason h2o_take_reason(); // once: it is none afterwards
