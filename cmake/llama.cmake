# The patched llama.cpp: vendor/llama.cpp is filled by vendor/fetch.py, then added with all of its own targets left out
# of ALL (only what depends on them builds them) and of the installation.
h2o_fetch(llama.cpp patches/*.patch vendor/*.py vendor/requirements.txt)

# Upstream would ask git, and find this project's repository.
file(STRINGS vendor/requirements.txt pinned_tag REGEX "^# tag:")
string(REGEX MATCH "b[0-9]+$" LLAMA_BUILD_COMMIT "${pinned_tag}")
set(LLAMA_BUILD_NUMBER 0)
set(GIT_EXE OFF)

set(BUILD_SHARED_LIBS ON)
set(LLAMA_BUILD_COMMON ON) # of these three, llama-server
set(LLAMA_BUILD_TOOLS ON)
set(LLAMA_BUILD_SERVER ON)
set(LLAMA_BUILD_TESTS OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_APP OFF)
set(LLAMA_BUILD_UI OFF)
set(LLAMA_USE_PREBUILT_UI OFF)
set(LLAMA_OPENSSL OFF)
set(GGML_OPENMP OFF)
if(H2O_LLAMA_WHEEL)
    # The CPU backend once for each kind of CPU, of which one is loaded at run time.
    set(GGML_NATIVE OFF)
    set(GGML_BACKEND_DL ON)
    set(GGML_CPU_ALL_VARIANTS ON)
endif()
add_subdirectory(vendor/llama.cpp EXCLUDE_FROM_ALL)
