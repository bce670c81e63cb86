#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

// Threads that work beside the computation. Tasks wait in a queue of limited length; where it is full, a task is not taken, and whoever has
// it does without. Only the destructor waits: for all that was taken.
class h2o_codec_pool {
public:
    h2o_codec_pool(uint32_t n_threads, uint32_t max_queue);
    ~h2o_codec_pool();

    h2o_codec_pool(const h2o_codec_pool &) = delete;
    h2o_codec_pool & operator=(const h2o_codec_pool &) = delete;

    // A task does not throw. False: the queue is full.
    bool submit(std::function<void()> task);

    uint32_t queue_peak() const; // most tasks that ever waited

private:
    void work();
    void stop();

    mutable std::mutex mutex;
    std::condition_variable wake;
    std::deque<std::function<void()>> queue;
    std::vector<std::thread> threads;
    const uint32_t max_queue;
    uint32_t peak    = 0;
    bool     is_done = false;
};
