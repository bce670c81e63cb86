#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

// microseconds
struct h2o_codec_percentiles {
    double p50 = 0;
    double p95 = 0;
    double p99 = 0;
};

// How long it has been there.
class h2o_codec_stopwatch {
public:
    float us() const { return std::chrono::duration<float, std::micro>(std::chrono::steady_clock::now() - start).count(); }

private:
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

// How long each of the last 4,096 pieces of work took.
class h2o_codec_times {
public:
    void add(float us);

    // the smallest times that these shares of them do not exceed; 0 if there are none
    h2o_codec_percentiles percentiles() const;

private:
    static constexpr size_t N_MAX = 4096;

    std::vector<float> us; // a ring
    uint64_t           n_added = 0;
};
