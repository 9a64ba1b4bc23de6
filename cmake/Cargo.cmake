# Finds a cargo that is new enough: SMOE_CARGO, then PATH, then where Debian's cargo-web puts it.
set(SMOE_CARGO "" CACHE FILEPATH "cargo to use; empty: look for one")
set(SMOE_CARGO_FLAGS "" CACHE STRING "More arguments for cargo build, such as --offline")

# Always the release profile, so all presets share one folder: its libraries take minutes to build.
# Worktrees of one clone share the folder of the first.
if(NOT DEFINED SMOE_CARGO_TARGET_DIR)
  execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --path-format=absolute
                          --git-common-dir
                  OUTPUT_VARIABLE git_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(DEFINED ENV{SMOE_CARGO_TARGET_DIR})
    set(folder $ENV{SMOE_CARGO_TARGET_DIR})
  elseif(git_folder MATCHES "^(.+)/\\.git$")
    set(folder ${CMAKE_MATCH_1}/build/cargo)
  else()
    set(folder ${CMAKE_SOURCE_DIR}/build/cargo)
  endif()
  set(SMOE_CARGO_TARGET_DIR ${folder} CACHE PATH "Where cargo builds")
endif()

# smoe_find_cargo(RESULT FOLDER): one that the manifest of the crate in FOLDER calls new enough.
function(smoe_find_cargo result folder)
  file(STRINGS ${folder}/Cargo.toml wanted REGEX "^rust-version *= *\"[0-9.]+\"")
  if(NOT wanted MATCHES "\"([0-9.]+)\"")
    message(FATAL_ERROR "${folder}/Cargo.toml: no rust-version = \"...\"")
  endif()
  set(version_min ${CMAKE_MATCH_1})
  set(seen "")
  find_program(cargo_on_path cargo NO_CACHE)
  foreach(candidate IN ITEMS "${SMOE_CARGO}" "${cargo_on_path}" $ENV{HOME}/.cargo/bin/cargo
                             /usr/bin/cargo)
    if(NOT candidate OR NOT EXISTS "${candidate}")
      continue()
    endif()
    execute_process(COMMAND "${candidate}" --version OUTPUT_VARIABLE text ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(text MATCHES "^cargo ([0-9.]+)" AND
       CMAKE_MATCH_1 VERSION_GREATER_EQUAL version_min)
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
    string(APPEND seen "\n  ${candidate}: ${text}")
  endforeach()
  message(FATAL_ERROR "cargo ${version_min} or newer is needed for ${folder}; found:"
                      "${seen}\n  tools/setup.sh installs one (Debian: cargo-web, rustc-web); "
                      "-DSMOE_CARGO=/path/to/cargo names another.")
endfunction()

# smoe_rust_library(TARGET FOLDER LIBRARY): the static library LIBRARY of the crate in FOLDER as an
# imported target, and its unit tests as one ctest of the folder's name.
function(smoe_rust_library target folder library)
  smoe_find_cargo(cargo ${folder})
  separate_arguments(flags UNIX_COMMAND "${SMOE_CARGO_FLAGS}")
  set(built ${SMOE_CARGO_TARGET_DIR}/release/lib${library}.a)
  set(archive ${CMAKE_CURRENT_BINARY_DIR}/rust/lib${library}.a)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/src/*.rs)
  # The copy: cargo leaves a fresh archive's time alone, and other worktrees may replace it.
  add_custom_command(
    OUTPUT ${archive}
    COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${SMOE_CARGO_TARGET_DIR}
            ${cargo} build --release --locked ${flags} --manifest-path ${folder}/Cargo.toml
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/rust
    COMMAND ${CMAKE_COMMAND} -E copy ${built} ${archive}
    DEPENDS ${sources} ${folder}/Cargo.toml ${folder}/Cargo.lock
    USES_TERMINAL VERBATIM COMMENT "cargo build ${folder}")
  add_custom_target(${target}_build DEPENDS ${archive})
  add_library(${target} STATIC IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${archive})
  target_link_libraries(${target} INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
  add_dependencies(${target} ${target}_build)
  if(SMOE_TESTS)
    add_test(NAME rust_text
      COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${SMOE_CARGO_TARGET_DIR}
              ${cargo} test --release --locked ${flags} --manifest-path ${folder}/Cargo.toml)
    set_tests_properties(rust_text PROPERTIES TIMEOUT 1200)
  endif()
endfunction()
