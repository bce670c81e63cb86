#pragma once

// Work buffers of the operators on the CPU.

#include <cstddef>
#include <cstdint>

constexpr int64_t h2o_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1)/b;
}

// Cuts pieces of whole cache lines off a work buffer, or says how large it must be.
struct h2o_take {
    char * const start; // or NULL
    size_t       size = 0; // bytes

    template <typename T>
    T * get(int64_t n) {
        char * res = start ? start + size : nullptr;
        size += h2o_ceil_div(n*sizeof(T), 64)*64;
        return (T *) res;
    }
};
