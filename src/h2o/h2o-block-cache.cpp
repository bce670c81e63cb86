#include "h2o-block-cache.h"

h2o_block_cache::bytes h2o_block_cache::get(key k, size_t n, const std::function<void(uint8_t *)> & load) {
    std::unique_lock<std::mutex> lock(mutex);

    while (true) {
        const auto it = entries.find(k);
        if (it == entries.end()) {
            count.n_misses++;
            return load_unlocked(lock, k, n, load, /*is_ahead =*/ false);
        }
        if (it->second.data) {
            return hit(it->second);
        }
        loaded.wait(lock); // it may have failed
    }
}

h2o_block_cache::bytes h2o_block_cache::find(key k) {
    const std::lock_guard<std::mutex> lock(mutex);

    const auto it = entries.find(k);
    if (it == entries.end() || !it->second.data) {
        count.n_misses++;
        return nullptr;
    }
    return hit(it->second);
}

void h2o_block_cache::load_ahead(key k, size_t n, const std::function<void(uint8_t *)> & load) {
    std::unique_lock<std::mutex> lock(mutex);

    if (entries.count(k) == 0) {
        load_unlocked(lock, k, n, load, /*is_ahead =*/ true);
    }
}

h2o_block_cache::bytes h2o_block_cache::hit(entry & e) {
    count.n_hits++;
    count.n_used += e.is_ahead;
    e.is_ahead = false;
    order.splice(order.begin(), order, e.place);
    return e.data;
}

h2o_block_cache::bytes h2o_block_cache::load_unlocked(
        std::unique_lock<std::mutex> & lock, key k, size_t n, const std::function<void(uint8_t *)> & load, bool is_ahead) {
    entries[k].is_ahead = is_ahead;

    bytes res;
    lock.unlock();
    try {
        auto data = std::make_shared<std::vector<uint8_t>>(n);
        load(data->data());
        res = std::move(data);
    } catch (...) {
        lock.lock();
        entries.erase(k);
        loaded.notify_all();
        throw;
    }
    lock.lock();

    entry & e = entries[k];
    e.data  = res;
    e.place = order.insert(order.begin(), k);

    count.n_ahead += is_ahead;
    count.n_bytes += n;
    while (count.n_bytes > capacity) {
        const auto last = entries.find(order.back());
        count.n_bytes -= last->second.data->size();
        entries.erase(last);
        order.pop_back();
    }
    loaded.notify_all();
    return res;
}

h2o_block_cache::counts h2o_block_cache::stats() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return count;
}
