// A device that runs H2O's CUDA kernels in software, and no others. What else a model computes, ggml gives to the CPU.

#include "ggml-cuda/common.cuh"

#include "ggml-backend-impl.h"

#include "ggml/attention/cuda/attention.cuh"
#include "ggml/max-rows/cuda/max-rows.cuh"
#include "ggml/top-keys/cuda/top-keys.cuh"

#include <cstdio>
#include <cstring>
#include <stdexcept>

static const char * NAME = "CUDA-in-software";

static bool is_nothing(const ggml_tensor * t) {
    return t->op == GGML_OP_NONE || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW || t->op == GGML_OP_PERMUTE || t->op == GGML_OP_TRANSPOSE;
}

static bool supports(ggml_backend_dev_t, const ggml_tensor * t) {
    switch (t->op) {
        case GGML_OP_MAX_ROWS:     return true;
        case GGML_OP_H2O_ATTN:     return ggml_cuda_h2o_attn_supported(0, t);
        case GGML_OP_H2O_TOP_KEYS: return ggml_cuda_h2o_top_keys_supported(0, t);
        default:                   return is_nothing(t);
    }
}

static ggml_status compute(ggml_backend_t, ggml_cgraph * graph) {
    ggml_backend_cuda_context ctx;
    try {
        for (int i = 0; i < graph->n_nodes; ++i) {
            ggml_tensor * t = graph->nodes[i];
            if (!is_nothing(t)) {
                memset(t->data, 0xff, ggml_nbytes(t)); // all of it is to be written
            }
            switch (t->op) {
                case GGML_OP_MAX_ROWS:     ggml_cuda_op_max_rows(ctx, t);     break;
                case GGML_OP_H2O_ATTN:     ggml_cuda_op_h2o_attn(ctx, t);     break;
                case GGML_OP_H2O_TOP_KEYS: ggml_cuda_op_h2o_top_keys(ctx, t); break;
                default:
                    if (!is_nothing(t)) {
                        return GGML_STATUS_FAILED;
                    }
            }
        }
    } catch (const std::runtime_error & e) {
        fprintf(stderr, "%s: %s\n", NAME, e.what());
        return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

static ggml_backend_t init(ggml_backend_dev_t device, const char *) {
    static ggml_guid guid = { 'H', '2', 'O', 's', 'o', 'f', 't' };

    ggml_backend_i iface = {};
    iface.get_name      = [](ggml_backend_t) { return NAME; };
    iface.free          = [](ggml_backend_t backend) { delete backend; };
    iface.graph_compute = compute;

    return new ggml_backend { &guid, iface, device, nullptr };
}

static void get_props(ggml_backend_dev_t, ggml_backend_dev_props * props) {
    props->name         = NAME;
    props->description  = NAME;
    props->type         = GGML_BACKEND_DEVICE_TYPE_GPU;
    props->memory_free  = (size_t) 1 << 34;
    props->memory_total = (size_t) 1 << 34;
    props->caps         = {};
}

static ggml_backend_reg make_reg();

static ggml_backend_device make_device(ggml_backend_reg_t reg) {
    ggml_backend_device_i iface = {};
    iface.get_name        = [](ggml_backend_dev_t) { return NAME; };
    iface.get_description = [](ggml_backend_dev_t) { return NAME; };
    iface.get_memory      = [](ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = (size_t) 1 << 34; };
    iface.get_type        = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
    iface.get_props       = get_props;
    iface.init_backend    = init;
    iface.get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); };
    iface.supports_op     = supports;
    iface.supports_buft   = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return ggml_backend_buft_is_host(type); };

    return { iface, reg, nullptr };
}

static ggml_backend_reg_t registry() {
    static ggml_backend_reg reg = make_reg();
    return &reg;
}

static ggml_backend_dev_t device(ggml_backend_reg_t, size_t) {
    static ggml_backend_device device = make_device(registry());
    return &device;
}

static ggml_backend_reg make_reg() {
    ggml_backend_reg_i iface = {};
    iface.get_name         = [](ggml_backend_reg_t) { return NAME; };
    iface.get_device_count = [](ggml_backend_reg_t) { return (size_t) 1; };
    iface.get_device       = device;
    iface.get_proc_address = [](ggml_backend_reg_t, const char *) { return (void *) nullptr; };

    return { GGML_BACKEND_API_VERSION, iface, nullptr };
}

extern "C" void cuda_in_software_register() {
    ggml_backend_register(registry());
}

extern "C" void cuda_in_software_unregister() {
    ggml_backend_unload(registry());
}

// 0: ascending, 1: descending, 2: shuffled
extern "C" void cuda_in_software_set_order(int order) {
    emulator::in_order = (emulator::order) order;
}
