# smoe_module(NAME [ARITHMETIC] [DEPENDS module...] [LINK library...])
#
# Makes the library smoe_NAME from the .cc files of src/NAME (subfolders included) and one test
# program from its *_test.cc files, run by ctest one case at a time. ARITHMETIC: loops over weights.
include(GoogleTest)

function(smoe_module name)
  cmake_parse_arguments(ARG "ARITHMETIC" "" "DEPENDS;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  set(depends ${ARG_DEPENDS})
  list(TRANSFORM depends PREPEND smoe_)
  if(sources)
    add_library(smoe_${name} STATIC ${sources})
    set(visibility PUBLIC)
  else()
    add_library(smoe_${name} INTERFACE)
    set(visibility INTERFACE)
  endif()
  if(ARG_ARITHMETIC AND CMAKE_BUILD_TYPE STREQUAL "Debug")
    # Unoptimised loops over weights would be most of the time of the sanitizers' tests. What a
    # header defines stays a function: tests/CMakeLists.txt looks for such in the vector files.
    target_compile_options(smoe_${name} PRIVATE -O2 -fno-inline)
  endif()
  target_include_directories(smoe_${name} ${visibility} ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(smoe_${name} ${visibility} ${depends} ${ARG_LINK})
  if(SMOE_TESTS AND tests)
    smoe_test(${name}_test SOURCES ${tests} DEPENDS ${name})
  endif()
endfunction()

# smoe_test(NAME SOURCES file... DEPENDS module...)
function(smoe_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set(depends ${ARG_DEPENDS})
  list(TRANSFORM depends PREPEND smoe_)
  target_link_libraries(${name} PRIVATE ${depends} GTest::gtest_main GTest::gmock)
  target_compile_definitions(${name} PRIVATE
    SMOE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" SMOE_SHARED_DIR="${CMAKE_SOURCE_DIR}/../shared")
  if(SMOE_SANITIZE MATCHES "undefined")
    # A test's own code without this one: a third less to compile. What it tests keeps it.
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS ${name})
endfunction()
