#pragma once

#include "h2o/store/codec/times.h"

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

enum h2o_codec_work : uint8_t {
    H2O_CODEC_WORK_ENCODE,
    H2O_CODEC_WORK_DECODE,
    H2O_CODEC_WORK_COUNT,
};

// Of one kind of work.
struct h2o_codec_pool_stats {
    uint64_t n_done    = 0;
    uint64_t n_failed  = 0; // of n_done: ended with an exception
    uint64_t n_skipped = 0; // not taken: the queue was full

    h2o_codec_percentiles times; // of a task, without the time that it waited
};

// Threads that encode and decode beside the computation. Tasks wait in a queue of limited length; where it is full a task is not taken
// and counted, and whoever has it does without. Nothing here waits but stop(), which the destructor calls.
class h2o_codec_pool {
public:
    h2o_codec_pool(uint32_t n_threads, uint32_t max_queue); // throws std::invalid_argument if one is 0
    ~h2o_codec_pool();

    h2o_codec_pool(const h2o_codec_pool &) = delete;
    h2o_codec_pool & operator=(const h2o_codec_pool &) = delete;

    // What f returns (not void) or throws comes with the future, once it is counted. None: the queue is full. Throws
    // std::invalid_argument after stop().
    template <typename F>
    auto submit(h2o_codec_work work, F f) -> std::optional<std::future<decltype(f())>> {
        auto task   = std::make_unique<task_of<F>>(work, std::move(f));
        auto result = task->promise.get_future();
        if (!push(std::move(task))) {
            return std::nullopt;
        }
        return result;
    }

    // Waits for all that was taken; nothing is taken any more. The statistics stay.
    void stop();

    h2o_codec_pool_stats stats(h2o_codec_work work) const;

    uint32_t queue_length() const; // tasks that wait now
    uint32_t queue_peak() const;   // most tasks that ever waited

private:
    struct task {
        const h2o_codec_work work;

        explicit task(h2o_codec_work work) : work(work) {}
        virtual ~task() = default;

        virtual bool run() noexcept = 0; // false: it threw
        virtual void deliver() = 0;
    };

    template <typename F>
    struct task_of : task {
        using result_t = decltype(std::declval<F &>()());

        F f;
        std::optional<result_t> result;
        std::exception_ptr      error;
        std::promise<result_t>  promise;

        task_of(h2o_codec_work work, F && f) : task(work), f(std::move(f)) {}

        bool run() noexcept override {
            try {
                result = f();
            } catch (...) {
                error = std::current_exception();
            }
            return !error;
        }

        void deliver() override {
            if (error) {
                promise.set_exception(error);
            } else {
                promise.set_value(std::move(*result));
            }
        }
    };

    struct counters {
        uint64_t n_done    = 0;
        uint64_t n_failed  = 0;
        uint64_t n_skipped = 0;
        h2o_codec_times times;
    };

    bool push(std::unique_ptr<task> t);
    void work();

    mutable std::mutex mutex;
    std::condition_variable wake;
    std::deque<std::unique_ptr<task>> queue;
    std::array<counters, H2O_CODEC_WORK_COUNT> counts;
    std::vector<std::thread> threads;
    const uint32_t max_queue;
    uint32_t peak    = 0;
    bool     is_done = false;
};
