#pragma once

#include <cstdlib>

// whether the environment variable is set to a number above 0
inline bool h2o_env(const char * name) {
    const char * value = getenv(name);
    return value && atoi(value) > 0;
}
