#include "emulator.h"

#include <csetjmp>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <ucontext.h>
#include <vector>
#include <algorithm>

// AddressSanitizer knows swapcontext; the other way asks the system for nothing and is ten times as fast.
#ifdef __SANITIZE_ADDRESS__
#define SWAPS_CONTEXTS 1
#else
#define SWAPS_CONTEXTS 0
#endif

namespace emulator {

place here;
order in_order = ASCENDING;

namespace {

constexpr size_t STACK_SIZE = 128*1024;
constexpr size_t MAX_VALUE  = 32; // bytes that a thread exchanges

// Threads that wait for each other.
struct meeting {
    unsigned     n       = 0; // threads
    unsigned     arrived = 0;
    unsigned     turn    = 0;
    const char * what    = nullptr;

    std::vector<char> values[2]; // of this turn, and of the last one, which others may still look at
};

struct copy {
    void *       dst;
    const void * src; // NULL: zeros
    size_t       size;
};

struct fibre {
    ucontext_t        context;
    jmp_buf           state;
    std::vector<char> stack = std::vector<char>(STACK_SIZE);
    meeting *         waits = nullptr;
    unsigned          turn;
    bool              begun;
    bool              done;

    std::vector<copy> copies; // not yet made
};

std::vector<std::unique_ptr<fibre>> fibres;
std::vector<meeting>                warps;
meeting                             block;

unsigned                       current;
ucontext_t                     scheduler;
jmp_buf                        scheduler_state;
const std::function<void()> *  kernel_of_threads;
const char *                   error;

void leave() {
    fibre & f = *fibres[current];
    if (SWAPS_CONTEXTS) {
        swapcontext(&f.context, &scheduler);
    } else if (_setjmp(f.state) == 0) {
        _longjmp(scheduler_state, 1);
    }
}

void run_thread() {
    (*kernel_of_threads)();
    fibres[current]->done = true;
    leave();
}

void resume(unsigned i) {
    current = i;
    fibre & f = *fibres[i];
    if (SWAPS_CONTEXTS) {
        swapcontext(&scheduler, &f.context);
    } else if (_setjmp(scheduler_state) == 0) {
        if (f.begun) {
            _longjmp(f.state, 1);
        }
        f.begun = true;
        setcontext(&f.context);
    }
}

const void * meet(meeting & m, unsigned place, const char * what, const void * value, size_t size) {
    if (m.arrived == 0) {
        m.what = what;
    } else if (strcmp(m.what, what) != 0) {
        error = "threads that should do the same do not";
        leave();
    }
    std::vector<char> & values = m.values[m.turn%2];
    values.resize(m.n*MAX_VALUE);
    memcpy(values.data() + place*size, value, size);

    fibre & f = *fibres[current];
    f.turn  = m.turn;
    f.waits = &m;
    if (++m.arrived == m.n) {
        m.arrived = 0;
        ++m.turn;
    } else {
        leave();
    }
    f.waits = nullptr;
    return values.data();
}

void run_block(unsigned n_threads, std::mt19937 & random) {
    block.n       = n_threads;
    block.arrived = 0;
    warps.resize(n_threads/32);
    for (meeting & m : warps) {
        m.n       = 32;
        m.arrived = 0;
    }
    std::vector<unsigned> turns(n_threads);
    for (unsigned i = 0; i < n_threads; ++i) {
        if (i == fibres.size()) {
            fibres.push_back(std::make_unique<fibre>());
        }
        fibre & f = *fibres[i];
        f.waits = nullptr;
        f.begun = false;
        f.done  = false;
        f.copies.clear();
        getcontext(&f.context);
        f.context.uc_stack.ss_sp   = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link          = nullptr;
        makecontext(&f.context, run_thread, 0);

        turns[i] = in_order == DESCENDING ? n_threads - 1 - i : i;
    }

    error = nullptr;
    for (unsigned n_done = 0; n_done < n_threads;) {
        if (in_order == SHUFFLED) {
            std::shuffle(turns.begin(), turns.end(), random);
        }
        bool moved = false;
        for (unsigned start = 0; start < n_threads; start += 32) {
            // a warp runs for as long as it can, far ahead of the others
            for (bool warp_moved = true; warp_moved;) {
                warp_moved = false;
                for (unsigned i = start; i < start + 32; ++i) {
                    fibre & f = *fibres[turns[i]];
                    if (f.done || (f.waits && f.waits->turn == f.turn)) {
                        continue;
                    }
                    resume(turns[i]);
                    warp_moved = true;
                    n_done += f.done;
                    if (error) {
                        throw std::runtime_error(error);
                    }
                }
                moved = moved || warp_moved;
            }
        }
        if (!moved) {
            throw std::runtime_error("threads wait for others that have ended or wait elsewhere");
        }
    }
}

} // namespace

unsigned thread_index() { return current; }

void sync_block() { meet(block, current, "__syncthreads", "", 0); }

void copy_async(void * dst, const void * src, size_t size, bool is_read) {
    if (((uintptr_t) dst | (uintptr_t) src) % size != 0) {
        error = "a copy to shared memory is not aligned";
        leave();
    }
    fibres[current]->copies.push_back({ dst, is_read ? src : nullptr, size });
}

void wait_for_copies() {
    for (const copy & c : fibres[current]->copies) {
        if (c.src) {
            memcpy(c.dst, c.src, c.size);
        } else {
            memset(c.dst, 0, c.size);
        }
    }
    fibres[current]->copies.clear();
}

void give_up() {
    error = "a kernel has met a type that it does not have";
    leave();
}

const void * exchange_warp(const char * what, const void * value, size_t size) {
    return meet(warps[current/32], current%32, what, value, size);
}

const void * exchange_block(const char * what, const void * value, size_t size) {
    return meet(block, current, what, value, size);
}

void launch(dim3 grid, dim3 block_size, size_t shared, const std::function<void()> & kernel) {
    if (block_size.x == 0 || block_size.x % 32 != 0 || block_size.x > 1024 || grid.y > 65535 || grid.z > 65535) {
        throw std::runtime_error("no GPU has such blocks or grids");
    }
    here.grid  = grid;
    here.block = block_size;

    kernel_of_threads = &kernel;

    std::mt19937   random(1);
    const uint64_t n_blocks = (uint64_t) grid.x*grid.y*grid.z;
    for (uint64_t i = 0; i < n_blocks; ++i) {
        const uint64_t b = in_order == DESCENDING ? n_blocks - 1 - i : i;

        here.index = dim3(b % grid.x, b/grid.x % grid.y, b/grid.x/grid.y);

        // of its own, and not as the last block left it
        std::unique_ptr<uint4[]> memory(new uint4[(shared + 15)/16]);
        memset(memory.get(), 0xff, (shared + 15)/16*16);
        here.shared = memory.get();

        run_block(block_size.x, random);
    }
}

} // namespace emulator
