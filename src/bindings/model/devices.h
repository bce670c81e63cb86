#pragma once

#include "ggml-backend.h"

#include <string>
#include <vector>

// Devices that may hold layers: first of each HOST:PORT, then this machine's GPUs. The integrated GPU is used only
// without another one.
std::vector<ggml_backend_dev_t> layer_devices(const std::vector<std::string> & rpc_servers);
