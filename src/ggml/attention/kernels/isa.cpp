#include "ggml/attention/kernels/isa.h"

#include "ggml/attention/attention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool has_avx2() {
    const unsigned F16C = 1u << 29;

    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & F16C)) {
        return false;
    }
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool has_avx_vnni() {
    const unsigned AVX_VNNI = 1u << 4;

    unsigned eax, ebx, ecx, edx;
    return has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & AVX_VNNI);
}

// that of AVX2 by another name: more instructions are of use to other operators
static const h2o_attn_kernel * avxvnni_kernel() {
    static const h2o_attn_kernel kernel = [] {
        h2o_attn_kernel res = *h2o_attn_avx2;
        res.name = "avxvnni";
        return res;
    }();
    return &kernel;
}

static bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}

static bool has_amx() {
#if defined(__linux__)
    const unsigned AMX_BF16 = 1u << 22;
    const unsigned AMX_TILE = 1u << 24;

    unsigned eax, ebx, ecx, edx;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & AMX_BF16) || !(edx & AMX_TILE)) {
        return false;
    }

    // the system must keep the tiles of each thread (AVX-512 says that there is xgetbv), and the process ask for it
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
#endif

using kernel_list = std::array<const h2o_attn_kernel *, 6>;

static kernel_list find_kernels() {
    kernel_list list = {};
    size_t n = 0;

    const auto add = [&](const h2o_attn_kernel * kernel) {
        if (kernel) {
            list[n++] = kernel;
        }
    };

#if defined(__x86_64__)
    if (has_amx()) {
        add(h2o_attn_amx);
    }
    if (has_avx512()) {
        add(h2o_attn_avx512);
    }
    if (has_avx_vnni() && h2o_attn_avx2) {
        add(avxvnni_kernel());
    }
    if (has_avx2()) {
        add(h2o_attn_avx2);
    }
#endif
    add(h2o_attn_portable);

    // for tests: as if the CPU had nothing better than this
    if (const char * name = getenv("H2O_ATTN_ISA")) {
        const auto it = std::find_if(list.begin(), list.end(), [&](const h2o_attn_kernel * k) { return k && strcmp(k->name, name) == 0; });
        if (it != list.end()) {
            std::fill(std::move(it, list.end(), list.begin()), list.end(), nullptr);
        }
    }

    return list;
}

static std::atomic<int> in_use { 0 };

const h2o_attn_kernel * const * h2o_attn_kernels() {
    static const kernel_list list = find_kernels();
    return list.data();
}

const h2o_attn_kernel & h2o_attn_kernel_in_use(bool more_keys) {
    const h2o_attn_kernel * const * kernel = h2o_attn_kernels() + in_use;
    while (more_keys && !(*kernel)->has_more_keys) {
        ++kernel; // the last one has them
    }
    return **kernel;
}

h2o_isa h2o_isa_in_use() {
#if defined(__x86_64__)
    const char * name = h2o_attn_kernel_in_use(false).name;

    if (strcmp(name, "avx512") == 0 || strcmp(name, "amx") == 0) {
        static const bool has_vnni = __builtin_cpu_supports("avx512vnni");
        return has_vnni ? h2o_isa::AVX512_VNNI : h2o_isa::AVX512;
    }
    if (strcmp(name, "avxvnni") == 0) {
        return h2o_isa::AVX_VNNI;
    }
    if (strcmp(name, "avx2") == 0) {
        return h2o_isa::AVX2;
    }
#endif
    return h2o_isa::PORTABLE;
}

const char * ggml_h2o_attn_isa(int i) {
    const h2o_attn_kernel * kernel = h2o_attn_kernels()[i];
    return kernel ? kernel->name : nullptr;
}

void ggml_h2o_attn_set_isa(int i) {
    in_use = i;
}
