#pragma once

#include "ggml-backend.h"

#include <string>
#include <vector>

// What may hold layers: the devices of each HOST:PORT, then this machine's GPUs, the built-in one only if there is no other.
std::vector<ggml_backend_dev_t> layer_devices(const std::vector<std::string> & rpc_servers);
