# Fills a folder with pinned sources (vendor/fetch.py NAME), and again when a file of these patterns changes.
function(h2o_fetch name)
    execute_process(
        COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/vendor/fetch.py" ${name}
        OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE result
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "${error}")
    endif()
    message(STATUS "${output}")

    set(patterns ${ARGN})
    list(TRANSFORM patterns PREPEND "${PROJECT_SOURCE_DIR}/")
    file(GLOB inputs CONFIGURE_DEPENDS ${patterns})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${inputs})
endfunction()
