#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

// How long it has been there.
class h2o_codec_stopwatch {
public:
    float us() const { return std::chrono::duration<float, std::micro>(std::chrono::steady_clock::now() - start).count(); }

private:
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

// How long each of the last 4,096 pieces of work took, in microseconds.
class h2o_codec_times {
public:
    void add(float time) {
        if (us.size() < N_MAX) {
            us.push_back(time);
        } else {
            us[n_added%N_MAX] = time;
        }
        n_added++;
    }

    // percentiles 50, 95 and 99: the smallest times that these shares of them do not exceed; 0 if there are none
    void percentiles(double out[3]) const {
        std::vector<float> sorted = us;
        std::sort(sorted.begin(), sorted.end());
        for (const double share : { 0.50, 0.95, 0.99 }) {
            *out++ = sorted.empty() ? 0 : sorted[(size_t) std::ceil(share*sorted.size()) - 1];
        }
    }

private:
    static constexpr size_t N_MAX = 4096;

    std::vector<float> us; // a ring
    uint64_t           n_added = 0;
};
