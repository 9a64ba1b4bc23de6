# What base, tensor, kernels and their tests want of other projects, for a machine that this one
# builds for and has no packages of: headers of this machine's packages that are the same for every
# architecture, and GoogleTest from the source that Debian's package brings.
if(NOT SMOE_KERNELS_ONLY)
  message(FATAL_ERROR "cross-compiling: SMOE_KERNELS_ONLY is OFF, expected ON: the other folders "
    "want libraries for ${CMAKE_SYSTEM_PROCESSOR}; use the preset arm64, or build there")
endif()
find_package(Threads REQUIRED)

# Links to them in a folder of their own: /usr/include itself has headers for this machine only.
set(headers ${CMAKE_BINARY_DIR}/headers)
file(MAKE_DIRECTORY ${headers})
foreach(name fmt spdlog nlohmann tl gtest gmock xxhash.h)
  find_path(SMOE_FOLDER_OF_${name} ${name} REQUIRED NO_CMAKE_FIND_ROOT_PATH)
  file(CREATE_LINK ${SMOE_FOLDER_OF_${name}}/${name} ${headers}/${name} SYMBOLIC)
endforeach()

# smoe_header_library(TARGET [definition...])
function(smoe_header_library target)
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} SYSTEM INTERFACE ${headers})
  target_compile_definitions(${target} INTERFACE ${ARGN})
endfunction()
smoe_header_library(fmt::fmt FMT_HEADER_ONLY=1)
smoe_header_library(spdlog::spdlog SPDLOG_FMT_EXTERNAL)
smoe_header_library(nlohmann_json::nlohmann_json)
smoe_header_library(tl::expected)
smoe_header_library(PkgConfig::libxxhash XXH_INLINE_ALL)

if(SMOE_TESTS)
  find_path(SMOE_GOOGLETEST googletest/src/gtest-all.cc PATHS /usr/src/googletest REQUIRED
    NO_CMAKE_FIND_ROOT_PATH)
  add_library(googletest STATIC
    ${SMOE_GOOGLETEST}/googletest/src/gtest-all.cc ${SMOE_GOOGLETEST}/googletest/src/gtest_main.cc
    ${SMOE_GOOGLETEST}/googlemock/src/gmock-all.cc)
  target_include_directories(googletest SYSTEM PUBLIC ${headers}
    PRIVATE ${SMOE_GOOGLETEST}/googletest ${SMOE_GOOGLETEST}/googlemock)
  target_compile_options(googletest PRIVATE -w)
  target_link_libraries(googletest PUBLIC Threads::Threads)
  add_library(GTest::gtest_main ALIAS googletest)
  add_library(GTest::gmock ALIAS googletest)
endif()
