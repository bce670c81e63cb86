#include "bindings.h"

#include "llama.h"

#include <stdexcept>

#ifdef GGML_BACKEND_DL
#include <dlfcn.h>

#include <filesystem>

// A wheel holds ggml's CPU backend once for each kind of CPU, beside libh2o-ggml. ggml takes the best that this CPU can run.
static void load_backends() {
    Dl_info ggml;
    if (!dladdr((const void *) &ggml_backend_load_all_from_path, &ggml)) {
        throw std::runtime_error("h2o_llama: the folder of ggml's library was not found");
    }
    const std::filesystem::path folder = std::filesystem::path(ggml.dli_fname).parent_path();

    ggml_backend_load_all_from_path(folder.c_str());
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        throw std::runtime_error("h2o_llama: " + folder.string() + " has no CPU backend for this machine. Install the package "
            "again, or from its source: pip install --force-reinstall --no-binary h2o-llama h2o-llama");
    }
}
#else
static void load_backends() {} // linked
#endif

void init_backends() {
    load_backends(); // first: without any, llama.cpp looks for some in the working directory
    llama_backend_init();
}
