#pragma once

#include <stdexcept>

// Something failed while running: h2o_llama.H2OError. A bad argument is std::invalid_argument, which becomes ValueError.
struct h2o_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};
