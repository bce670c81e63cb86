#pragma once

#include <pybind11/pybind11.h>

#include <optional>

// A call that others need not wait for: this thread is without the GIL for the lifetime of the object.
//
// A thread that asks for the GIL when Python has ended is unwound through C++ that cannot be, which ends the process.
// So none is within when Python ends: calls in progress are ended, and no other begins.
class without_gil {
public:
    without_gil(); // throws h2o_error when Python is ending
    ~without_gil();

    without_gil(const without_gil &) = delete;
    without_gil & operator=(const without_gil &) = delete;

    // calls in progress should return
    static bool is_ending();

    // has this done when Python ends, and what a fork changes
    static void register_end();

private:
    std::optional<pybind11::gil_scoped_release> release;
};

// The same for a call that computes, by threads which a later child of fork() does not have: it would wait for them for
// ever.
class computing : public without_gil {
public:
    explicit computing(bool starts_threads = true); // throws as check()

    static void check();     // throws h2o_error in such a child
    static bool is_forked(); // whether this is one

    // for deleters: in such a child it leaves alone what threads or devices may use
    template <auto release, typename T>
    static void free(T * ptr) {
        if (!is_forked()) {
            release(ptr);
        }
    }
};
