#include "bindings/bindings.h"

PYBIND11_MODULE(_core, m) {
    m.doc() = "Private extension module of h2o_llama: the patched llama.cpp.";

    init_library  (m);
    init_model    (m);
    init_projector(m);
    init_context  (m);
    init_kv       (m);
    init_kv_cache (m);
    init_options  (m);
    init_pattern  (m);
    init_grammar  (m);
    init_chat     (m);
    init_sampler  (m);
    init_ops      (m);
    init_quantize (m);
    init_codec    (m);
    init_server   (m);
}
