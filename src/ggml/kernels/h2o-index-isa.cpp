#include "h2o-index-isa.h"

#include "h2o-attn-isa.h"

#include <string>

const h2o_index_kernel & h2o_index_kernel_in_use() {
#if defined(__x86_64__)
    const std::string attn = h2o_attn_kernel_in_use(false).name;

    if (attn == "avx2" && h2o_index_avx2) {
        return *h2o_index_avx2;
    }
    if (attn == "avx512" || attn == "amx") {
        static const bool has_vnni = __builtin_cpu_supports("avx512vnni");
        return has_vnni && h2o_index_avx512 ? *h2o_index_avx512 : *h2o_index_avx2;
    }
#endif
    return *h2o_index_portable;
}
