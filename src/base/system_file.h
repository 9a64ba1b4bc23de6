// base/system_file.h: small files of /proc and /sys, and what to do where no file can be opened.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace smoe {

// What an open that failed with `error` (an errno) says, and for a limit on open files how it is
// raised: "Too many open files: this process may have 1024; raise that by ulimit -n".
std::string OpenErrorText(int error);
// kExhausted for a limit on open files, else kIo.
ErrorCode OpenErrorCode(int error);

// The file's text, up to kSystemFileBytesMax; nullopt if it is not there or not ours to read, since
// kernels and containers differ in that.
// Errors: kExhausted where no file can be opened at all: taking that for "not there" would overlook
//         a limit that the file names; kIo.
inline constexpr size_t kSystemFileBytesMax = size_t{16} << 20;
Result<std::optional<std::string>> ReadSystemFile(const std::string& path);

}  // namespace smoe
