#include "h2o/store/codec/pool.h"

#include <algorithm>
#include <stdexcept>

h2o_codec_pool::h2o_codec_pool(uint32_t n_threads, uint32_t max_queue) : max_queue(max_queue) {
    if (n_threads == 0 || max_queue == 0) {
        throw std::invalid_argument("[codec] a pool has at least 1 thread and room for 1 task");
    }
    threads.reserve(n_threads);
    try {
        for (uint32_t i = 0; i < n_threads; ++i) {
            threads.emplace_back([this] { work(); });
        }
    } catch (...) {
        stop(); // a destructor is not called for what was never whole
        throw;
    }
}

h2o_codec_pool::~h2o_codec_pool() {
    stop();
}

void h2o_codec_pool::stop() {
    std::vector<std::thread> ending;
    {
        std::lock_guard lock(mutex);
        is_done = true;
        ending.swap(threads);
    }
    wake.notify_all();
    for (std::thread & thread : ending) {
        thread.join();
    }
}

bool h2o_codec_pool::push(std::unique_ptr<task> t) {
    {
        std::lock_guard lock(mutex);
        if (is_done) {
            throw std::invalid_argument("[codec] the pool is closed");
        }
        if (queue.size() >= max_queue) {
            counts[t->work].n_skipped++;
            return false;
        }
        queue.push_back(std::move(t));
        peak = std::max<uint32_t>(peak, queue.size());
    }
    wake.notify_one();
    return true;
}

void h2o_codec_pool::work() {
    std::unique_lock lock(mutex);
    while (true) {
        wake.wait(lock, [this] { return is_done || !queue.empty(); });
        if (queue.empty()) {
            return;
        }
        const std::unique_ptr<task> t = std::move(queue.front());
        queue.pop_front();

        lock.unlock();
        const h2o_codec_stopwatch watch;
        const bool  ok = t->run();
        const float us = watch.us();
        lock.lock();

        counters & c = counts[t->work];
        c.times.add(us);
        c.n_done++;
        c.n_failed += !ok;

        lock.unlock();
        t->deliver();
        lock.lock();
    }
}

h2o_codec_pool_stats h2o_codec_pool::stats(h2o_codec_work work) const {
    std::lock_guard lock(mutex);
    const counters & c = counts[work];
    return { c.n_done, c.n_failed, c.n_skipped, c.times.percentiles() };
}

uint32_t h2o_codec_pool::queue_length() const {
    std::lock_guard lock(mutex);
    return queue.size();
}

uint32_t h2o_codec_pool::queue_peak() const {
    std::lock_guard lock(mutex);
    return peak;
}
