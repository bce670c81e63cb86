#pragma once

#include <pthread.h>

#include <cstddef>
#include <stdexcept>

// Whether this thread's stack is almost used up: a thread has 8 MiB with glibc, 512 KiB on macOS, 128 KiB with musl.
// What calls itself for each level of its input gives up there.
inline bool h2o_stack_is_short() {
    static thread_local const char * const end = [] {
#ifdef __APPLE__
        return (const char *) pthread_get_stackaddr_np(pthread_self()) - pthread_get_stacksize_np(pthread_self());
#else
        pthread_attr_t attributes;
        void *         begin = nullptr;
        size_t         size  = 0;
        if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
            pthread_attr_getstack(&attributes, &begin, &size);
            pthread_attr_destroy(&attributes);
        }
        return (const char *) begin;
#endif
    }();
    return (const char *) __builtin_frame_address(0) < end + 64*1024;
}

// A call of a function that calls itself, one of n. Throws where these are too many, or the stack is short.
struct h2o_nesting {
    int & n;

    h2o_nesting(int & n, int most, const char * message) : n(n) {
        if (n >= most || h2o_stack_is_short()) {
            throw std::runtime_error(message);
        }
        ++n;
    }
    ~h2o_nesting() { --n; }
};
