#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

// Decoded blocks, of which the least recently used make room. Several threads may use it: a block is loaded by one of them, for which
// the others wait.
class h2o_block_cache {
public:
    using key   = std::pair<uint64_t, uint32_t>;
    using bytes = std::shared_ptr<const std::vector<uint8_t>>;

    struct counts {
        uint64_t n_hits  = 0;
        uint64_t n_misses = 0;
        uint64_t n_ahead = 0; // blocks that were loaded ahead
        uint64_t n_used  = 0; // of these: asked for while they were here
        uint64_t n_bytes = 0; // held now
    };

    explicit h2o_block_cache(uint64_t capacity) : capacity(capacity) {}

    // The block, of n bytes, from load() if it is not here. What that throws is thrown, and the block is not here then.
    bytes get(key k, size_t n, const std::function<void(uint8_t *)> & load);

    // The block if it is here. If not, its caller loads it elsewhere.
    bytes find(key k);

    // loads the block unless it is here, or being loaded
    void load_ahead(key k, size_t n, const std::function<void(uint8_t *)> & load);

    counts stats() const;

    const uint64_t capacity;

private:
    struct entry {
        bytes data; // NULL while it is being loaded
        bool  is_ahead = false;

        std::list<key>::iterator place;
    };

    bytes hit(entry & e);
    bytes load_unlocked(std::unique_lock<std::mutex> & lock, key k, size_t n, const std::function<void(uint8_t *)> & load, bool is_ahead);

    mutable std::mutex      mutex;
    std::condition_variable loaded;

    std::map<key, entry> entries;
    std::list<key>       order; // of what is loaded, the last used first

    counts count;
};
