#include "bindings/model/devices.h"

#include "bindings/bindings.h"

static void add_devices(std::vector<ggml_backend_dev_t> & result, enum ggml_backend_dev_type type) {
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(device) == type) {
            result.push_back(device);
        }
    }
}

static void add_servers(std::vector<ggml_backend_dev_t> & result, const std::vector<std::string> & rpc_servers) {
    ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
    if (!rpc) {
        throw h2o_error("rpc_servers: this build has no RPC. Install h2o-llama from its source with it: "
            "pip install . -C cmake.define.GGML_RPC=ON");
    }
    const auto add_server =
        (ggml_backend_reg_t (*)(const char *)) ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server");

    for (const auto & server : rpc_servers) {
        ggml_backend_reg_t reg;
        try {
            reg = add_server(server.c_str());
        } catch (const std::exception & e) {
            throw h2o_error(std::string(e.what()) + ": start `h2o-llama rpc-server` of this version there");
        }
        for (size_t i = 0; reg && i < ggml_backend_reg_dev_count(reg); ++i) {
            result.push_back(ggml_backend_reg_dev_get(reg, i));
        }
    }
}

std::vector<ggml_backend_dev_t> layer_devices(const std::vector<std::string> & rpc_servers) {
    std::vector<ggml_backend_dev_t> result;
    if (!rpc_servers.empty()) {
        add_servers(result, rpc_servers);
    }
    const size_t n_remote = result.size();
    add_devices(result, GGML_BACKEND_DEVICE_TYPE_GPU);
    if (result.size() == n_remote) {
        add_devices(result, GGML_BACKEND_DEVICE_TYPE_IGPU);
    }
    return result;
}
