#pragma once

#include <cstddef>
#include <cstdint>

// Asks for the cache lines of n bytes that will be read soon, without waiting for them.
inline void h2o_codec_prefetch(const void * data, size_t n) {
    constexpr size_t LINE = 64;

    const uint8_t * end = (const uint8_t *) data + n;
    for (const uint8_t * p = (const uint8_t *) ((uintptr_t) data/LINE*LINE); p < end; p += LINE) {
        __builtin_prefetch(p);
    }
}
