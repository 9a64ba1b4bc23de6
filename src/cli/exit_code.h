// cli/exit_code.h: how the program ends, by kind, so that scripts need not read messages.
#pragma once

#include "base/result.h"

namespace smoe::cli {

enum class ExitCode : int {
  kOk = 0,
  kCorrupt = 1,      // a file is damaged or contradicts itself
  kUsage = 2,        // wrong arguments or a request that cannot be met as it is
  kUnsupported = 3,  // valid, but not something this build does
  kIo = 4,           // the drive or the system refused
  kExhausted = 5,    // memory, disk space or slots ran out
  kInterrupted = 130,
};

constexpr ExitCode ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return ExitCode::kUsage;
    case ErrorCode::kCorrupt:
      return ExitCode::kCorrupt;
    case ErrorCode::kUnsupported:
      return ExitCode::kUnsupported;
    case ErrorCode::kIo:
      return ExitCode::kIo;
    case ErrorCode::kExhausted:
      return ExitCode::kExhausted;
  }
  return ExitCode::kIo;
}

}  // namespace smoe::cli
