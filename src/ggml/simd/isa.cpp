#include "ggml/simd/isa.h"

#include "ggml-impl.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

struct cpuid {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;

    explicit cpuid(unsigned leaf, unsigned subleaf = 0) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

bool has_avx2() {
    const unsigned F16C = 1u << 29;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
        (cpuid(1).ecx & F16C);
}

bool has_avx_vnni() {
    const unsigned AVX_VNNI = 1u << 4;

    return has_avx2() && (cpuid(7, 1).eax & AVX_VNNI);
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_vnni() {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

bool has_amx() {
#if defined(H2O_EMULATE_AMX)
    return has_avx2();
#elif defined(__linux__)
    const unsigned AMX_BF16 = 1u << 22;
    const unsigned AMX_TILE = 1u << 24;
    const unsigned AMX      = AMX_BF16 | AMX_TILE;

    if (!has_avx512_vnni() || !__builtin_cpu_supports("avx512bf16") || (cpuid(7).edx & AMX) != AMX) {
        return false;
    }

    // the system must save the tiles of each thread, and the process ask for them; a CPU with AVX-512 has xgetbv
    const unsigned XTILECFG_AND_XTILEDATA = 3u << 17;
    const int      ARCH_REQ_XCOMP_PERM    = 0x1023;
    const int      XFEATURE_XTILEDATA     = 18;

    unsigned xcr0, high;
    __asm__ ("xgetbv" : "=a" (xcr0), "=d" (high) : "c" (0));

    return (xcr0 & XTILECFG_AND_XTILEDATA) == XTILECFG_AND_XTILEDATA &&
        syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

} // namespace
#endif

namespace {

struct cpu_isas {
    bool has[H2O_N_ISAS] = {};

    cpu_isas() {
        set(h2o_isa::PORTABLE, true);
#if defined(__x86_64__)
        set(h2o_isa::AVX2,        has_avx2());
        set(h2o_isa::AVX_VNNI,    has_avx_vnni());
        set(h2o_isa::AVX512,      has_avx512());
        set(h2o_isa::AVX512_VNNI, has_avx512_vnni());
        set(h2o_isa::AMX,         has_amx());
#endif
        // for tests of programs
        if (const char * last = getenv("H2O_ISA"); last && *last) {
            int i = 0;
            while (i < H2O_N_ISAS && strcmp(h2o_isa_name((h2o_isa) i), last) != 0) {
                i++;
            }
            if (i == H2O_N_ISAS) {
                GGML_LOG_WARN(
                    "H2O_ISA: '%s' is not the name of an instruction set, such as 'avx2', and changes nothing\n", last);
            } else {
                std::fill(has + i + 1, has + H2O_N_ISAS, false);
            }
        }
    }

    void set(h2o_isa isa, bool x) { has[(int) isa] = x; }
};

} // namespace

static std::atomic<h2o_isa> last_in_use { h2o_isa::AMX };

const char * h2o_isa_name(h2o_isa isa) {
    static const char * const names[H2O_N_ISAS] = {
        "portable", "avx2", "avxvnni", "avx512", "avx512vnni", "amx",
    };

    return names[(int) isa];
}

bool h2o_has_isa(h2o_isa isa) {
    static const cpu_isas isas;

    return isas.has[(int) isa];
}

void h2o_set_isa(h2o_isa isa) {
    last_in_use = isa;
}

bool h2o_uses_isa(h2o_isa isa) {
    return h2o_has_isa(isa) && isa <= last_in_use;
}
