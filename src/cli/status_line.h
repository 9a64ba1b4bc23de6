// cli/status_line.h: what a request is doing now, on stderr, while it runs.
//
//   prompt    a bar after a second: tokens, rate, time left, GB/s from the drive; it moves with
//             every layer, since one chunk of a large model may take a minute
//   answer    tok/s, hits, GB/s from the drive, share of the time waiting for it: of the last
//             second or so
//
// The answer's text is never disturbed. Where it goes to a file, and stderr is a terminal, the
// figures are a line that is redrawn there and wiped at the end. Where the text goes to a terminal,
// or to a pipe that may end at the same one, it stands where the line would be: the figures go into
// the window's title, whose old text comes back at the end. Where stderr is no terminal, it gets
// the prompt's progress as a plain line every five seconds, and nothing for the answer unless that
// is asked for.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/progress_bar.h"
#include "engine/engine.h"

namespace smoe::cli {

enum class StatusMode : uint8_t {
  kOff,   // nothing at all
  kAuto,  // as above
  kOn,    // and plain lines for the answer where stderr is no terminal
};

// --status off|auto|on.
void DefineStatus(Arguments& arguments, std::string* name);
StatusMode StatusNamed(const std::string& name);

// "12.3 tok/s  78.2 % in memory  1.21 GB/s from the drive  35 % waiting" between two looks.
std::string StatusText(const engine::EngineStats& before, const engine::EngineStats& after,
                       uint64_t token_count, double seconds);

struct StatusTimes {
  std::chrono::milliseconds silent{1000};  // before the prompt's bar appears
  std::chrono::milliseconds look{1000};    // between two figures of the answer
  std::chrono::milliseconds plain{5000};   // the same in plain lines
};

class StatusLine {
 public:
  // Borrows the engine, and is told of its layers while it lives.
  StatusLine(engine::Engine& engine, size_t prompt_tokens, StatusMode mode, Console& console,
             const StatusTimes& times = {});
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // A token is about to be printed: the first ends the prompt's bar.
  void Token();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Place : uint8_t { kNone, kLine, kTitle, kPlain };  // of the answer's figures

  void Layer(uint32_t done_count, uint32_t layer_count);
  Place ChoosePlace(StatusMode mode) const;
  void Draw(const std::string& text);

  engine::Engine& engine_;
  Console& console_;
  const size_t prompt_tokens_;
  const StatusTimes times_;
  const Place place_;
  const Clock::time_point started_;
  const engine::EngineStats before_;
  std::optional<ProgressBar> bar_;
  bool is_in_prompt_ = true;
  bool has_drawn_ = false;
  uint64_t token_count_ = 0;  // since the last look
  Clock::time_point looked_;
  engine::EngineStats last_;
};

}  // namespace smoe::cli
