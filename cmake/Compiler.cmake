# Warnings, sanitizers, compiler cache: everything that is the same for every target.
option(SMOE_WERROR "Treat warnings as errors (presets do)" OFF)
set(SMOE_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=")

find_program(SMOE_CCACHE ccache)
if(SMOE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SMOE_CCACHE})
endif()

# x86-64-v2 is the oldest CPU we start on; faster kernels are chosen at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64")
  add_compile_options(-march=x86-64-v2)
endif()

# One defined order of every float operation: never contract a * b + c behind our back.
add_compile_options(
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast
  -Wnon-virtual-dtor -ffp-contract=off -fno-math-errno)
if(SMOE_WERROR)
  add_compile_options(-Werror)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_options(-D_GLIBCXX_ASSERTIONS)
endif()
if(SMOE_SANITIZE)
  # -g1: lines and functions for the reports, without what only a debugger wants.
  add_compile_options(
    -fsanitize=${SMOE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${SMOE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 sees its own instrumentation of shifts as conversions; the other presets check these.
    add_compile_options(-Wno-conversion -Wno-sign-conversion)
  endif()
endif()
