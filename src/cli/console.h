// cli/console.h: the streams of a command. Results go to out, everything else to err.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "base/printable.h"
#include "base/result.h"

namespace smoe::cli {

// Neither Print nor Note fails or throws. What Print could not write shows in Flush, which every
// command ends with; what Note could not write is lost, since there is nobody left to tell.
struct Console {
  std::FILE* in = stdin;
  std::FILE* out = stdout;
  std::FILE* err = stderr;

  template <class... Args>
  void Print(fmt::format_string<Args...> format, Args&&... args) const {
    Write(out, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void Note(fmt::format_string<Args...> format, Args&&... args) const {
    Write(err, fmt::format(format, std::forward<Args>(args)...));
  }

  // Errors: kIo if something that was printed since the start did not reach its end of `out`.
  Status Flush() const;

  // True if a write to `out` failed because it is a pipe that nobody reads any more.
  bool ReaderIsGone() const;

 private:
  static void Write(std::FILE* stream, std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stream);
  }
};

// Input that is read whole: as much as the side files of a model.
inline constexpr uint64_t kInputBytesMax = uint64_t{256} << 20;

// Everything up to the end of standard input.
// Errors: kInvalid beyond `size_max` bytes; kIo if the stream cannot be read.
Result<std::string> ReadAll(std::FILE* stream, uint64_t size_max = kInputBytesMax);

// Gives descriptors 0 to 2 that the caller has closed to a null device, where each use fails.
// Otherwise the first file that is opened would be taken for standard input or output: `smoe
// shatter` would print into its own vault.
void HoldStandardStreams();

bool IsTerminal(std::FILE* stream);

}  // namespace smoe::cli
