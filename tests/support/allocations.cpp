// Preloaded into a process: the nth allocation of at least 2,048 bytes by C++ fails, of this thread's.

#include <cstddef>
#include <cstdlib>
#include <new>

static thread_local long   n_left  = 0;
static thread_local size_t largest = 0;

extern "C" void fail_allocation(long n) { // n = 0: none
    n_left  = n;
    largest = 0;
}

extern "C" int has_failed() {
    return n_left == 0;
}

extern "C" size_t largest_allocation() {
    return largest;
}

void * operator new(size_t n) {
    largest = n > largest ? n : largest;

    const bool fails = n_left > 0 && n >= 2048 && --n_left == 0;
    void *     res   = fails ? nullptr : malloc(n);
    if (!res) {
        throw std::bad_alloc();
    }
    return res;
}
