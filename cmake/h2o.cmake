# Our sources, added to upstream's libraries; the Python extension; what goes into the wheel.
function(h2o_add_sources target)
    list(TRANSFORM ARGN PREPEND "${PROJECT_SOURCE_DIR}/src/")
    file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
    target_sources(${target} PRIVATE ${sources})
    target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/src")
    # upstream's models are compiled several at once
    set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

h2o_add_sources(ggml-base ggml/*/*.c ggml/*/kernels/*.cpp ggml/simd/*.cpp)
h2o_add_sources(llama pattern/*.cpp h2o/*/*.cpp h2o/llama/*/*.cpp h2o/llama/memory/side/*.cpp h2o/llama/memory/state/*.cpp h2o/store/cold/*.cpp)
h2o_add_sources(llama-common chat/*.cpp schema/*.cpp)
h2o_add_sources(server-context server/*.cpp)
target_link_libraries(server-context PRIVATE cpp-httplib vendor::hash) # addresses; names of slot files
target_include_directories(llama PUBLIC src/h2o) # llama-h2o.h
target_link_libraries(llama PRIVATE codec pcre2)

# ggml's CPU backend, compiled for one CPU, or in a wheel once for each kind of CPU.
set(cpu_backends ggml-cpu)
if(NOT TARGET ggml-cpu)
    get_property(cpu_backends DIRECTORY vendor/llama.cpp/ggml/src PROPERTY BUILDSYSTEM_TARGETS)
    list(FILTER cpu_backends INCLUDE REGEX "^ggml-cpu-")
    list(FILTER cpu_backends EXCLUDE REGEX "-feats$")
endif()
foreach(backend ${cpu_backends})
    h2o_add_sources(${backend} ggml/*/cpu/*.cpp)
endforeach()

# A failed assertion may be an exception (src/bindings/llama-call.cpp), which passes through ggml's C.
foreach(target ggml-base ${cpu_backends})
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C>:-fexceptions>")
endforeach()

# Kernels of our operators, compiled for each instruction set, once for all CPU backends and for the core. The CPU that runs
# them says which to use: not GGML_NATIVE, nor the backend. An instruction set (src/ggml/simd/isa.h) is available if it has
# options here.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    # GCC clears a few vectors by rep stos: 3 to 5 % of the time of a product with one column of 896 numbers
    check_cxx_compiler_flag(-mmemset-strategy=libcall:-1:noalign H2O_LLAMA_MEMSET_STRATEGY)
    if(H2O_LLAMA_MEMSET_STRATEGY)
        set(clear_options "-mmemset-strategy=unrolled_loop:1024:noalign,libcall:-1:noalign")
        # it would compute all products of a step before it adds them, and copy the sums
        set(product_AVX2_options  -fno-tree-ter)
        set(top-keys_AVX2_options -fno-tree-ter)
    endif()
    set(PORTABLE_options -march=x86-64)
    set(AVX2_options -march=haswell)
    check_cxx_compiler_flag(-mavx512vnni H2O_LLAMA_AVX512)
    if(H2O_LLAMA_AVX512)
        set(AVX512_options -march=skylake-avx512)
        set(AVX512_VNNI_options -march=skylake-avx512 -mavx512vnni)
    endif()
    check_cxx_compiler_flag(-mavxvnni H2O_LLAMA_AVX_VNNI)
    if(H2O_LLAMA_AVX_VNNI)
        set(AVX_VNNI_options -march=haswell -mavxvnni)
    endif()
    check_cxx_compiler_flag(-mamx-bf16 H2O_LLAMA_AMX)
    if(H2O_EMULATE_AMX) # tools/check_kernels.py
        set(AMX_options -march=haswell -include "${PROJECT_SOURCE_DIR}/tests/support/amx_emulation.h" -Wno-psabi -Wno-ignored-attributes)
    elseif(H2O_LLAMA_AMX)
        set(AMX_options -march=skylake-avx512 -mavx512bf16 -mamx-tile -mamx-bf16)
    endif()
else()
    set(PORTABLE_options "")
endif()
set(PORTABLE_vector 4) # floats
set(AVX2_vector 8)
set(AVX_VNNI_vector 8)
set(AVX512_vector 16)
set(AVX512_VNNI_vector 16)
set(AMX_vector 16)

# The best first.
set(attention_isas AMX AVX512_VNNI AVX512 AVX_VNNI AVX2 PORTABLE)
set(product_isas AMX AVX512_VNNI AVX_VNNI AVX2)
set(top-keys_isas AVX512_VNNI AVX_VNNI AVX2 PORTABLE)

# Each kernel is kernels/simd.h of its operator, or kernels/<instruction set>.h if there is one. H2O_<OPERATOR>_KERNELS(F), in
# h2o-kernels.h, is F(instruction set, variable) for each of them.
set(kernels "#pragma once\n")
foreach(operator attention product top-keys)
    string(MAKE_C_IDENTIFIER "h2o_${operator}_kernels" list)
    string(TOUPPER "${list}" list)
    string(APPEND kernels "\n#define ${list}(F)")
    foreach(isa ${${operator}_isas})
        if(DEFINED ${isa}_options)
            string(TOLOWER "${isa}" name)
            string(MAKE_C_IDENTIFIER "h2o_${operator}_${name}" variable)
            set(header "ggml/${operator}/kernels/${name}.h")
            if(NOT EXISTS "${PROJECT_SOURCE_DIR}/src/${header}")
                set(header "ggml/${operator}/kernels/simd.h")
            endif()
            set(source "${PROJECT_BINARY_DIR}/kernels/${variable}.cpp")
            file(CONFIGURE OUTPUT "${source}" CONTENT "#define KERNEL ${variable}\n#define VL ${${isa}_vector}\n#include \"${header}\"\n")
            target_sources(ggml-base PRIVATE "${source}")
            # GCC 12 warns of its own headers for AVX-512
            set_source_files_properties("${source}" TARGET_DIRECTORY ggml-base PROPERTIES
                COMPILE_OPTIONS "-ffp-contract=fast;-Wno-uninitialized;-Wno-maybe-uninitialized;${clear_options};${${isa}_options};${${operator}_${isa}_options}")
            string(APPEND kernels " F(${isa}, ${variable})")
        endif()
    endforeach()
endforeach()
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/kernels/h2o-kernels.h" CONTENT "${kernels}\n")
target_include_directories(ggml-base PRIVATE "${PROJECT_BINARY_DIR}/kernels")

if(H2O_EMULATE_AMX)
    target_compile_definitions(ggml-base PRIVATE H2O_EMULATE_AMX)
    # upstream's buffers
    target_sources(ggml-cpu PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/amx_buffers.cpp")
    foreach(file amx/amx.cpp ggml-cpu.cpp)
        set_source_files_properties("${PROJECT_SOURCE_DIR}/vendor/llama.cpp/ggml/src/ggml-cpu/${file}"
            TARGET_DIRECTORY ggml-cpu PROPERTIES COMPILE_OPTIONS "${AMX_options};-Dsyscall=emulated_syscall")
    endforeach()
endif()

if(TARGET ggml-cuda)
    h2o_add_sources(ggml-cuda ggml/*/cuda/*.cu)
endif()
if(TARGET ggml-hip OR TARGET ggml-musa) # they compile upstream's CUDA files, which call these operators
    message(FATAL_ERROR "H2O's operators are for CUDA and CPUs: use GGML_CUDA, GGML_VULKAN or a build for CPUs")
endif()

# What stands around the model is to compile fast, what it computes is short: -O1, and several files at once.
foreach(target llama-common mtmd server-context llama-server-impl cpp-httplib)
    target_compile_options(${target} PRIVATE -O1 -w)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
endforeach()
set_source_files_properties("${PROJECT_SOURCE_DIR}/vendor/llama.cpp/common/json.cpp" # specialisations
    TARGET_DIRECTORY llama-common PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set(alone mtmd-helper.cpp mtmd-helper-gen.cpp) # headers that exclude each other
list(TRANSFORM alone PREPEND "${PROJECT_SOURCE_DIR}/vendor/llama.cpp/tools/mtmd/")
set_source_files_properties(${alone} TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

set(backends ${cpu_backends})
foreach(backend blas cuda hip metal musa rpc vulkan)
    if(TARGET ggml-${backend})
        list(APPEND backends ggml-${backend})
    endif()
endforeach()
set(libraries llama ggml ggml-base codec llama-common mtmd llama-server-impl ${backends})
if(APPLE)
    set(origin "@loader_path")
else()
    set(origin "$ORIGIN")
endif()
foreach(library ${libraries})
    # Its own name, so that another copy of llama.cpp in the same process is not taken for it; no version, because a
    # wheel cannot hold the links that go with one; and it finds the others in its own folder.
    set_target_properties(${library} PROPERTIES OUTPUT_NAME "h2o-${library}" INSTALL_RPATH "${origin}")
    foreach(property VERSION SOVERSION PUBLIC_HEADER)
        set_property(TARGET ${library} PROPERTY ${property})
    endforeach()
endforeach()
if(GGML_BACKEND_DL)
    # loaded by path, and found by the names that ggml gives them
    foreach(backend ${backends})
        set_target_properties(${backend} PROPERTIES OUTPUT_NAME ${backend})
    endforeach()
endif()
install(TARGETS ${libraries} LIBRARY DESTINATION h2o_llama/lib)

# The servers: `h2o-llama serve` starts the one, `h2o-llama rpc-server` the other.
set(servers llama-server)
if(TARGET ggml-rpc)
    list(APPEND servers ggml-rpc-server)
endif()
add_custom_target(h2o-servers ALL DEPENDS ${servers})
set_target_properties(${servers} PROPERTIES INSTALL_RPATH "${origin}")
install(TARGETS ${servers} RUNTIME DESTINATION h2o_llama/lib) # beside the backends, where they look for them
