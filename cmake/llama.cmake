# The patched llama.cpp: vendor/llama.cpp is filled by vendor/fetch.py, then added with all of its own targets left out
# of ALL (only what depends on them builds them) and of the installation.
execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/vendor/fetch.py"
    OUTPUT_VARIABLE fetch_output ERROR_VARIABLE fetch_error RESULT_VARIABLE fetch_result
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT fetch_result EQUAL 0)
    message(FATAL_ERROR "${fetch_error}")
endif()
message(STATUS "${fetch_output}")
file(GLOB fetch_inputs CONFIGURE_DEPENDS patches/*.patch vendor/*.py vendor/requirements.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${fetch_inputs})

# Upstream would ask git, and find this project's repository.
file(STRINGS vendor/requirements.txt pinned_commit REGEX "^# commit:")
string(REGEX MATCH "[0-9a-f]+$" pinned_commit "${pinned_commit}")
string(SUBSTRING "${pinned_commit}" 0 9 LLAMA_BUILD_COMMIT)
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
if(H2O_LLAMA_WHEEL)
    # The CPU backend once for each kind of CPU, of which one is loaded at run time.
    set(GGML_NATIVE OFF)
    set(GGML_BACKEND_DL ON)
    set(GGML_CPU_ALL_VARIANTS ON)
endif()
add_subdirectory(vendor/llama.cpp EXCLUDE_FROM_ALL)
