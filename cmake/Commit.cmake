# cmake -DSOURCE=folder -DOUT=commit.h -P Commit.cmake
#
# Writes the commit that is being built as a header, and only if that changed. "" outside of a
# clone; with "+" behind it where files differ from the commit.
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=7 HEAD
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE differs ERROR_QUIET)
if(commit AND NOT differs EQUAL 0)
  string(APPEND commit "+")
endif()
set(text "// Made by cmake/Commit.cmake at each build.
#pragma once

namespace smoe::cli {

inline constexpr char kCommit[] = \"${commit}\";

}  // namespace smoe::cli
")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
