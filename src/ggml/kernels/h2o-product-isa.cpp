#include "h2o-product-isa.h"

#include "h2o-attn-isa.h"

#include <string>

const h2o_product_kernel * h2o_product_kernel_in_use() {
#if defined(__x86_64__)
    const std::string attn = h2o_attn_kernel_in_use(false).name;

    if (attn == "avx512" || attn == "amx") {
        static const bool has_vnni = __builtin_cpu_supports("avx512vnni");
        return has_vnni && h2o_product_avx512 ? h2o_product_avx512 : h2o_product_avx2;
    }
    if (attn == "avx2") {
        return h2o_product_avx2;
    }
#endif
    return nullptr;
}
