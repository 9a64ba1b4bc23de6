#include "cli/status_line.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "engine/cache_figures.h"

namespace smoe::cli {

namespace {

using engine::Over;

// Source: XTerm Control Sequences: OSC 2 sets the title, CSI 22;2t keeps it, CSI 23;2t brings it
// back.
constexpr char kKeepTitle[] = "\x1b[22;2t";
constexpr char kRestoreTitle[] = "\x1b[23;2t";

bool UnderstandsTitles() {
  const char* const term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb" &&
         std::string_view(term) != "linux";
}

// Neither a terminal nor a way to one.
bool IsFile(std::FILE* stream) {
  struct stat facts = {};
  return fstat(fileno(stream), &facts) == 0 && S_ISREG(facts.st_mode);
}

double SecondsOf(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void DefineStatus(Arguments& arguments, std::string* name) {
  arguments.Choice("--status", name, {"auto", "off", "on"},
                   "What goes on now, on stderr: the prompt's progress, then tok/s, hits, the "
                   "drive and waiting; auto: for the answer only on a terminal");
}

StatusMode StatusNamed(const std::string& name) {
  if (name == "off") return StatusMode::kOff;
  return name == "on" ? StatusMode::kOn : StatusMode::kAuto;
}

std::string StatusText(const engine::EngineStats& before, const engine::EngineStats& after,
                       uint64_t token_count, double seconds) {
  const experts::CacheStats cache = engine::CacheSince(before.cache, after.cache);
  return fmt::format(
      "{:.2f} tok/s  {:.1f} % in memory  {:.2f} GB/s from the drive  {:.0f} % waiting",
      Over(static_cast<double>(token_count), seconds), 100 * engine::HitShare(cache),
      Over(static_cast<double>(cache.read_bytes), seconds) / 1e9,
      Over(1e-7 * static_cast<double>(cache.wait_ns), seconds));
}

StatusLine::StatusLine(engine::Engine& engine, size_t prompt_tokens, StatusMode mode,
                       Console& console, const StatusTimes& times)
    : engine_(engine),
      console_(console),
      prompt_tokens_(prompt_tokens),
      times_(times),
      place_(ChoosePlace(mode)),
      started_(Clock::now()),
      before_(engine.stats()),
      looked_(started_),
      last_(before_) {
  if (mode == StatusMode::kOff) return;
  bar_.emplace(console, "prompt");
  engine_.OnLayer([this](uint32_t done, uint32_t all) { Layer(done, all); });
}

StatusLine::~StatusLine() {
  engine_.OnLayer({});
  if (!has_drawn_) return;
  if (place_ == Place::kLine) console_.Note("\r\x1b[K");
  if (place_ == Place::kTitle) console_.Note("{}", kRestoreTitle);
  std::fflush(console_.err);
}

StatusLine::Place StatusLine::ChoosePlace(StatusMode mode) const {
  if (mode == StatusMode::kOff) return Place::kNone;
  if (!IsTerminal(console_.err)) return mode == StatusMode::kOn ? Place::kPlain : Place::kNone;
  if (IsFile(console_.out)) return Place::kLine;
  return UnderstandsTitles() ? Place::kTitle : Place::kNone;
}

// The step's rows are counted as done by the share of the layers that they have passed.
void StatusLine::Layer(uint32_t done_count, uint32_t layer_count) {
  const auto now = Clock::now();
  if (!bar_ || !is_in_prompt_ || now - started_ < times_.silent) return;
  const engine::EngineStats stats = engine_.stats();
  const uint64_t done = stats.prompt_token_count + stats.reused_token_count -
                        before_.prompt_token_count - before_.reused_token_count;
  const uint64_t left = prompt_tokens_ - std::min<uint64_t>(prompt_tokens_, done);
  const uint64_t rows = std::min<uint64_t>(left, engine_.setup().chunk_tokens);
  const uint64_t read_bytes = stats.cache.read_bytes - before_.cache.read_bytes;
  bar_->UpdateCount(
      done + rows * done_count / layer_count, prompt_tokens_, "tokens",
      read_bytes == 0
          ? ""
          : fmt::format("{:.2f} GB/s from the drive",
                        Over(static_cast<double>(read_bytes), SecondsOf(now - started_)) / 1e9));
}

void StatusLine::Token() {
  if (is_in_prompt_) {
    is_in_prompt_ = false;
    bar_.reset();  // ends the line, before the answer begins
    looked_ = Clock::now();
    last_ = engine_.stats();
    return;
  }
  ++token_count_;
  if (place_ == Place::kNone) return;
  const auto now = Clock::now();
  if (now - looked_ < (place_ == Place::kPlain ? times_.plain : times_.look)) return;
  const engine::EngineStats stats = engine_.stats();
  Draw(StatusText(last_, stats, token_count_, SecondsOf(now - looked_)));
  last_ = stats;
  looked_ = now;
  token_count_ = 0;
}

void StatusLine::Draw(const std::string& text) {
  if (place_ == Place::kLine) {
    console_.Note("\r{}\x1b[K", text);
  } else if (place_ == Place::kTitle) {
    console_.Note("{}\x1b]2;smoe: {}\x07", has_drawn_ ? "" : kKeepTitle, text);
  } else {
    console_.Note("answer: {}\n", text);
  }
  std::fflush(console_.err);
  has_drawn_ = true;
}

}  // namespace smoe::cli
