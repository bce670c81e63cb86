#include "types.h"

#include <stdexcept>

ggml_type find_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * type_name = ggml_type_name((ggml_type) i);
        if (type_name && name == type_name) {
            return (ggml_type) i;
        }
    }
    throw std::invalid_argument("unknown type '" + name + "'");
}
