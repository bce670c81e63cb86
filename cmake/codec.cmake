# The codec of K and V, a library of its own that knows nothing of llama.cpp; vendor/codecs is filled by vendor/fetch_codecs.py.
execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/vendor/fetch_codecs.py"
    OUTPUT_VARIABLE fetch_output ERROR_VARIABLE fetch_error RESULT_VARIABLE fetch_result
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT fetch_result EQUAL 0)
    message(FATAL_ERROR "${fetch_error}")
endif()
message(STATUS "${fetch_output}")
file(GLOB fetch_inputs CONFIGURE_DEPENDS vendor/*.py vendor/requirements-*.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${fetch_inputs})

find_package(Threads REQUIRED)
file(GLOB codec_sources CONFIGURE_DEPENDS src/codec/*.cpp)
set(codec_libraries vendor/codecs/zstd.c vendor/codecs/lz4.c vendor/codecs/xxhash.c)
add_library(codec SHARED ${codec_sources} ${codec_libraries})
target_include_directories(codec PUBLIC src/codec PRIVATE vendor/codecs)
target_link_libraries(codec PUBLIC Threads::Threads)
set_target_properties(codec PROPERTIES POSITION_INDEPENDENT_CODE ON LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

# Other copies of these in the same process must not be taken for ours, nor ours for them.
set_source_files_properties(${codec_libraries} PROPERTIES COMPILE_OPTIONS "-w;-O3;-fvisibility=hidden")
set_property(SOURCE ${codec_libraries} ${codec_sources} APPEND PROPERTY COMPILE_DEFINITIONS
    ZSTDLIB_VISIBLE= ZSTDLIB_HIDDEN= ZSTDERRORLIB_VISIBLE= LZ4LIB_VISIBILITY= XXH_NAMESPACE=h2o_codec_)
set_property(SOURCE ${codec_sources} APPEND PROPERTY COMPILE_OPTIONS "-O3")
