#include "ggml/threads/threads.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include <strings.h>
#ifdef __linux__
#include <sys/resource.h>
#endif

// A thread of an idle machine is preempted less than 0.2 times in a millisecond of its CPU time, one that shares its CPU
// with another program 3 to 20 times.
static constexpr long PREEMPTIONS_PER_MS = 1;
static constexpr long OBSERVED_US = 10000; // of CPU time, at least

struct h2o_waiting {
    std::mutex              mutex;
    std::condition_variable changed;
    std::atomic<int>        n_asleep      { 0 };
    std::atomic<int64_t>    crowded_until { 0 };

    int64_t spin_us;
    bool    is_active;
};

static bool waits(const char * policy) {
    const char * value = getenv("OMP_WAIT_POLICY");
    return value && strcasecmp(value, policy) == 0;
}

h2o_waiting * h2o_waiting_new(int spin_us) {
    auto * waiting = new h2o_waiting;
    waiting->spin_us   = waits("passive") ? 0 : spin_us;
    waiting->is_active = waits("active");
    return waiting;
}

void h2o_waiting_free(h2o_waiting * waiting) {
    delete waiting;
}

int h2o_spins(h2o_waiting * waiting, h2o_spin * spin) {
    if (++spin->n % 32 != 0 || waiting->is_active) {
        return true;
    }
    const int64_t now = ggml_time_us();
    if (spin->start == 0) {
        spin->start = now;
    }
    return now >= waiting->crowded_until.load(std::memory_order_relaxed) && now - spin->start < waiting->spin_us;
}

void h2o_wait(h2o_waiting * waiting, const void * value, int old) {
    const auto is_old = [&] { return __atomic_load_n((const int *) value, __ATOMIC_SEQ_CST) == old; };

    h2o_spin spin {};
    while (is_old() && h2o_spins(waiting, &spin)) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile ("yield" ::: "memory");
#endif
    }
    if (is_old()) {
        std::unique_lock<std::mutex> lock(waiting->mutex);
        waiting->n_asleep++;
        waiting->changed.wait(lock, [&] { return !is_old(); });
        waiting->n_asleep--;
    }
}

void h2o_wake(h2o_waiting * waiting) {
    if (waiting->n_asleep > 0) { // who is not counted yet will see the new value
        std::lock_guard<std::mutex> lock(waiting->mutex);
        waiting->changed.notify_all();
    }
}

void h2o_observe(h2o_waiting * waiting) {
#ifdef __linux__
    static thread_local rusage before {};
    static thread_local int64_t time_before = 0;
    rusage now;
    if (getrusage(RUSAGE_THREAD, &now) != 0) {
        return;
    }
    const auto us = [](const timeval & time) { return time.tv_sec*1000000 + time.tv_usec; };
    const long cpu_us = us(now.ru_utime) + us(now.ru_stime) - us(before.ru_utime) - us(before.ru_stime);
    if (cpu_us < OBSERVED_US) {
        return;
    }
    const int64_t time = ggml_time_us();
    if ((now.ru_nivcsw - before.ru_nivcsw)*1000 > PREEMPTIONS_PER_MS*cpu_us) {
        waiting->crowded_until = time + 2*std::min<int64_t>(time - time_before, 1000000);
    }
    before = now;
    time_before = time;
#else
    GGML_UNUSED(waiting);
#endif
}

// Pools and their threads. Never freed: a child of fork() has no such threads, and could not join them when it ends.
static std::mutex idle_mutex;
static auto &     idle = *new std::vector<std::pair<ggml_threadpool *, int>>;

ggml_threadpool * h2o_take_threadpool(int n_threads) {
    {
        std::lock_guard<std::mutex> lock(idle_mutex);
        // a graph wakes all threads of its pool: one for prompts may have far more than a token needs
        const auto fits = [&](const auto & pool) { return pool.second >= n_threads && pool.second < 2*n_threads; };
        if (const auto it = std::find_if(idle.begin(), idle.end(), fits); it != idle.end()) {
            ggml_threadpool * pool = it->first;
            idle.erase(it);
            return pool;
        }
    }
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    return ggml_threadpool_new(&params);
}

void h2o_give_threadpool(ggml_threadpool * pool, int n_threads) {
    std::lock_guard<std::mutex> lock(idle_mutex);
    idle.emplace_back(pool, n_threads);
}
