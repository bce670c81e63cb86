#include "h2o/store/codec/pool.h"

#include <algorithm>

h2o_codec_pool::h2o_codec_pool(uint32_t n_threads, uint32_t max_queue) : max_queue(max_queue) {
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
    {
        const std::lock_guard<std::mutex> lock(mutex);
        is_done = true;
    }
    wake.notify_all();
    for (std::thread & thread : threads) {
        thread.join();
    }
}

bool h2o_codec_pool::submit(std::function<void()> task) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (queue.size() >= max_queue) {
            return false;
        }
        queue.push_back(std::move(task));
        peak = std::max<uint32_t>(peak, queue.size());
    }
    wake.notify_one();
    return true;
}

void h2o_codec_pool::work() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
        wake.wait(lock, [this] { return is_done || !queue.empty(); });
        if (queue.empty()) {
            return;
        }
        std::function<void()> task = std::move(queue.front());
        queue.pop_front();

        lock.unlock();
        task();
        task = nullptr; // what it holds goes without the lock
        lock.lock();
    }
}

uint32_t h2o_codec_pool::queue_peak() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return peak;
}
