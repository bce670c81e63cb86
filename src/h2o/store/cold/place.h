#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Bytes that were written once and do not change.
class h2o_cold_bytes {
public:
    explicit h2o_cold_bytes(size_t size) : size(size) {}

    virtual ~h2o_cold_bytes() = default;

    // Where [offset, offset + n) are: in memory, or read to buffer. Throws std::runtime_error.
    virtual const uint8_t * get(size_t offset, size_t n, std::vector<uint8_t> & buffer) const = 0;

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
