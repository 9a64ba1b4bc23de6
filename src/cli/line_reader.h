// cli/line_reader.h: lines that a person types, with editing and history on a terminal.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/console.h"

namespace smoe::cli {

// Bytes of a line: more than any context holds, less than what endless input would take.
inline constexpr size_t kLineBytesMax = size_t{16} << 20;

class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted, kTooLong };

  // On a terminal lines are edited (arrows, history); elsewhere they are read as they come and no
  // prompt is written.
  // `meanwhile`: called again and again while a terminal is waited for, as long as it returns true
  // and anew for each character. Empty: nobody.
  using Meanwhile = std::function<bool()>;
  explicit LineReader(Console& console, Meanwhile meanwhile = {});
  ~LineReader();

  // kInterrupted: Ctrl-C was pressed (an InterruptGuard must be alive); the line is dropped.
  // kTooLong: more than kLineBytesMax; what was read is lost.
  Outcome Read(const std::string& prompt, std::string* line);

 private:
  struct Editor;
  Outcome ReadEdited(const std::string& prompt, std::string* line);
  Outcome ReadPlain(std::string* line);

  Console& console_;
  std::unique_ptr<Editor> editor_;  // null unless a terminal
};

}  // namespace smoe::cli
