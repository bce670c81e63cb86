#include "h2o/text/embedding-id.h"

#include <cstring>

// FNV-1a, 32 bits at a time
int32_t h2o_embedding_id(const float * row, size_t n) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, row + i, sizeof(bits));
        hash = (hash ^ bits)*0x100000001b3u;
    }
    hash ^= hash >> 32; // products carry upwards only

    return -2 - (int32_t) (hash % (INT32_MAX - 1u));
}
