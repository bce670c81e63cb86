# Compilers, Python, for GGML_CUDA the CUDA toolkit, and for GGML_VULKAN what compiles its shaders.
include(CheckCXXCompilerFlag)
include(CheckLanguage)

foreach(language C CXX)
    check_language(${language})
    if(NOT CMAKE_${language}_COMPILER)
        message(FATAL_ERROR
            "h2o-llama: no working C and C++17 compiler found (CC='$ENV{CC}', CXX='$ENV{CXX}'). "
            "Install one: apt install g++, dnf install gcc-c++, xcode-select --install.")
    endif()
    enable_language(${language})
endforeach()

if(NOT "cxx_std_17" IN_LIST CMAKE_CXX_COMPILE_FEATURES)
    message(FATAL_ERROR
        "h2o-llama: ${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}) has no C++17. "
        "Set CXX to a newer compiler.")
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "MSVC")
    message(FATAL_ERROR
        "h2o-llama: the attention kernels use vector types that MSVC does not have. Set CC and CXX to clang-cl or gcc.")
endif()

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Threads REQUIRED)

set(Python_FIND_VIRTUALENV FIRST)
find_package(Python 3.10 COMPONENTS Interpreter Development.Module)
if(NOT Python_FOUND)
    message(FATAL_ERROR
        "h2o-llama: Python >= 3.10 with its C headers was not found (interpreter: '${Python_EXECUTABLE}'). "
        "Install the headers: apt install python3-dev, dnf install python3-devel.")
endif()

if(GGML_CUDA)
    check_language(CUDA)
    if(NOT CMAKE_CUDA_COMPILER)
        message(FATAL_ERROR "h2o-llama: GGML_CUDA is on, and nvcc was not found. Install the CUDA toolkit or set CUDACXX.")
    endif()
    find_package(CUDAToolkit)
    if(NOT TARGET CUDA::cublas)
        message(FATAL_ERROR
            "h2o-llama: GGML_CUDA is on, and the cuBLAS development library was not found beside "
            "${CMAKE_CUDA_COMPILER}. Install the whole CUDA toolkit or set CUDAToolkit_ROOT.")
    endif()
endif()

if(GGML_VULKAN)
    find_package(Vulkan COMPONENTS glslc)
    find_package(SPIRV-Headers CONFIG)
    if(NOT Vulkan_FOUND OR NOT SPIRV-Headers_FOUND)
        message(FATAL_ERROR
            "h2o-llama: GGML_VULKAN is on, and Vulkan's headers, glslc or SPIRV-Headers were not found. "
            "Install them: docs/gpu.md says how.")
    endif()
endif()
