#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Asks for the cache lines of n bytes that will be read soon, without waiting for them.
inline void h2o_prefetch(const void * data, size_t n) {
    constexpr size_t LINE = 64;

    const uint8_t * end = (const uint8_t *) data + n;
    for (const uint8_t * p = (const uint8_t *) ((uintptr_t) data/LINE*LINE); p < end; p += LINE) {
        __builtin_prefetch(p);
    }
}

// Bytes that were written once and do not change.
class h2o_cold_bytes {
public:
    explicit h2o_cold_bytes(size_t size) : size(size) {}

    virtual ~h2o_cold_bytes() = default;

    // Where [offset, offset + n) are: in memory, or read to buffer. Throws std::runtime_error.
    virtual const uint8_t * get(size_t offset, size_t n, std::vector<uint8_t> & buffer) const = 0;

    // those bytes will be read soon
    virtual void prefetch(size_t /*offset*/, size_t /*n*/) const {}

    const size_t size;
};

// Where evicted K and V go. Bytes keep their place as long as somebody has them. Several threads may write.
class h2o_cold_place {
public:
    virtual ~h2o_cold_place() = default;

    // throws std::runtime_error without room
    virtual std::shared_ptr<const h2o_cold_bytes> write(const std::vector<uint8_t> & bytes) = 0;
};

// "memory", or a folder for an unnamed file that disappears with this process. Throws std::runtime_error.
std::shared_ptr<h2o_cold_place> h2o_make_cold_place(const std::string & where);
