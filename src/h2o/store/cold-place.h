#pragma once

#include <cstddef>
#include <memory>
#include <string>

// Bytes that were written once and do not change.
class h2o_cold_block {
public:
    explicit h2o_cold_block(size_t size) : size(size) {}

    virtual ~h2o_cold_block() = default;

    // throws std::runtime_error if they cannot be read
    virtual void read(size_t offset, size_t n, void * dst) const = 0;

    // those bytes will be read soon
    virtual void prefetch(size_t /*offset*/, size_t /*n*/) const {}

    const size_t size;
};

// Where evicted K and V go. A block keeps its place as long as somebody has it. Several threads may write.
class h2o_cold_place {
public:
    virtual ~h2o_cold_place() = default;

    // throws std::runtime_error if there is no room
    virtual std::shared_ptr<const h2o_cold_block> write(const void * data, size_t n) = 0;
};

// "memory", or a folder in which there will be a file without a name, which is gone with this process. Throws std::runtime_error
// if none can be made there.
std::shared_ptr<h2o_cold_place> h2o_make_cold_place(const std::string & where);
