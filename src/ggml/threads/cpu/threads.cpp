#include "ggml/threads/threads.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <vector>

#ifdef __linux__
#include <strings.h>
#include <sys/resource.h>
#endif

// A thread of an idle machine is preempted less than 0.2 times in a millisecond of its CPU time, one that shares its CPU
// with another program 3 to 20 times.
static constexpr long PREEMPTIONS_PER_MS = 1;
static constexpr int64_t CROWDED_US = 1000000; // since the last sign of it

struct h2o_meeting {
    alignas(64) std::atomic<int> n_here   { 0 };
    alignas(64) std::atomic<int> n_passed { 0 }; // meetings
    alignas(64) std::atomic<int> n_asleep { 0 };

    std::mutex              mutex;
    std::condition_variable all_here;

    std::atomic<int64_t> crowded_until { 0 };
    int64_t spin_us   = 0;
    bool    is_active = false;
};

static bool waits(const char * policy) {
    const char * value = getenv("OMP_WAIT_POLICY");
    return value && strcasecmp(value, policy) == 0;
}

h2o_meeting * h2o_meeting_new(int spin_us) {
    auto * meeting = new h2o_meeting;
    meeting->spin_us   = waits("passive") ? 0 : spin_us;
    meeting->is_active = waits("active");
    return meeting;
}

void h2o_meeting_free(h2o_meeting * meeting) {
    delete meeting;
}

int h2o_spins(h2o_meeting * meeting, h2o_spin * spin) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile ("yield" ::: "memory");
#endif
    if (++spin->n % 32 != 0 || meeting->is_active) {
        return true;
    }
    const int64_t now = ggml_time_us();
    if (spin->start == 0) {
        spin->start = now;
    }
    return now >= meeting->crowded_until.load(std::memory_order_relaxed) && now - spin->start < meeting->spin_us;
}

void h2o_meet(h2o_meeting * meeting, int n_threads) {
    const int n_passed = meeting->n_passed.load(std::memory_order_relaxed);

    if (meeting->n_here.fetch_add(1) == n_threads - 1) {
        meeting->n_here.store(0, std::memory_order_relaxed);
        meeting->n_passed.fetch_add(1);
        if (meeting->n_asleep.load() > 0) { // who is not counted yet will see n_passed
            std::lock_guard<std::mutex> lock(meeting->mutex);
            meeting->all_here.notify_all();
        }
        return;
    }
    for (h2o_spin spin {}; meeting->n_passed.load() == n_passed;) {
        if (!h2o_spins(meeting, &spin)) {
            std::unique_lock<std::mutex> lock(meeting->mutex);
            meeting->n_asleep.fetch_add(1);
            meeting->all_here.wait(lock, [&] { return meeting->n_passed.load() != n_passed; });
            meeting->n_asleep.fetch_sub(1);
        }
    }
}

void h2o_meeting_observe(h2o_meeting * meeting) {
#ifdef __linux__
    static thread_local rusage before {};
    rusage now;
    if (getrusage(RUSAGE_THREAD, &now) != 0) {
        return;
    }
    const auto us = [](const timeval & time) { return time.tv_sec*1000000 + time.tv_usec; };
    const long cpu_us = us(now.ru_utime) + us(now.ru_stime) - us(before.ru_utime) - us(before.ru_stime);
    if ((now.ru_nivcsw - before.ru_nivcsw)*1000 > PREEMPTIONS_PER_MS*std::max(cpu_us, 1000L)) {
        meeting->crowded_until = ggml_time_us() + CROWDED_US;
    }
    before = now;
#else
    GGML_UNUSED(meeting);
#endif
}

struct pool_of_threads {
    ggml_threadpool * threads;
    int               n_threads;
    bool              in_use;
};

// Never freed: a child of fork() has no such threads, and could not join them when it ends.
static std::mutex pools_mutex;
static auto &     pools = *new std::vector<pool_of_threads>;

ggml_threadpool * h2o_take_threadpool(int n_threads) {
    std::lock_guard<std::mutex> lock(pools_mutex);

    auto pool = std::find_if(pools.begin(), pools.end(), [](const pool_of_threads & p) { return !p.in_use; });
    if (pool == pools.end()) {
        pool = pools.insert(pool, { nullptr, 0, false });
    }
    if (pool->n_threads < n_threads) {
        ggml_threadpool_free(pool->threads);
        ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
        *pool = { ggml_threadpool_new(&params), n_threads, false };
    }
    pool->in_use = true;
    return pool->threads;
}

void h2o_give_threadpool(ggml_threadpool * threads) {
    std::lock_guard<std::mutex> lock(pools_mutex);
    std::find_if(pools.begin(), pools.end(), [&](const pool_of_threads & p) { return p.threads == threads; })->in_use = false;
}
