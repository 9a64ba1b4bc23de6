#include "cli/generation.h"

#include <optional>
#include <utility>

#include "base/memory_limits.h"
#include "base/stopwatch.h"
#include "cli/interrupt.h"
#include "cli/progress_bar.h"

namespace smoe::cli {

namespace {

double Rate(uint64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

// The counters of one request.
struct Cost {
  uint64_t prompt_tokens;
  uint64_t reused_tokens;
  uint64_t hits;
  uint64_t misses;
  uint64_t foreseen;        // in memory because they were read ahead
  uint64_t foreseen_reads;  // all that were read ahead
  uint64_t read_bytes;
  double wait_seconds;
  double expert_seconds;
  double decode_rate;   // tokens per second after the first
  double prefill_rate;  // prompt tokens per second up to the first token

  Cost(const engine::EngineStats& before, const engine::EngineStats& after, const Answer& answer)
      : prompt_tokens(after.prompt_token_count - before.prompt_token_count),
        reused_tokens(after.reused_token_count - before.reused_token_count),
        hits(after.cache.hit_count - before.cache.hit_count),
        misses(after.cache.miss_count - before.cache.miss_count),
        foreseen(after.cache.prefetch_hit_count - before.cache.prefetch_hit_count),
        foreseen_reads(after.cache.prefetch_count - before.cache.prefetch_count),
        read_bytes(after.cache.read_bytes - before.cache.read_bytes),
        wait_seconds(1e-9 * static_cast<double>(after.cache.wait_ns - before.cache.wait_ns)),
        expert_seconds(1e-9 *
                       static_cast<double>(after.expert_compute_ns - before.expert_compute_ns)),
        decode_rate(
            Rate(answer.tokens.empty() ? 0 : answer.tokens.size() - 1, answer.decode_seconds)),
        prefill_rate(Rate(prompt_tokens, answer.first_token_seconds)) {}

  double HitShare() const {
    const uint64_t wanted = hits + misses + foreseen;
    return wanted == 0 ? 1 : static_cast<double>(hits) / static_cast<double>(wanted);
  }
};

// Says how far the prompt is, once it has taken long enough to be wondered about.
class PromptProgress {
 public:
  PromptProgress(const engine::Engine& engine, size_t token_count, Console& console)
      : engine_(engine),
        token_count_(token_count),
        done_before_(DoneCount()),
        bar_(std::in_place, console, "prompt") {}

  void Update(double seconds) {
    if (!bar_ || seconds < kSilentSeconds) return;
    bar_->UpdateCount(DoneCount() - done_before_, token_count_, "tokens");
  }
  void End() { bar_.reset(); }  // ends the line, before the answer begins

 private:
  static constexpr double kSilentSeconds = 2;

  uint64_t DoneCount() const {
    const engine::EngineStats stats = engine_.stats();
    return stats.prompt_token_count + stats.reused_token_count;
  }

  const engine::Engine& engine_;
  const uint64_t token_count_;
  const uint64_t done_before_;
  std::optional<ProgressBar> bar_;
};

}  // namespace

Result<Answer> Generate(engine::Engine& engine, engine::Request request, Console& console,
                        const std::function<Status(uint32_t)>& on_token) {
  Answer answer;
  Stopwatch stopwatch;
  PromptProgress progress(engine, request.prompt.size(), console);
  SMOE_TRY_ASSIGN(const uint64_t id, engine.Submit(std::move(request)));
  while (!engine.idle()) {
    if (InterruptGuard::Requested()) engine.Cancel(id);
    SMOE_TRY_ASSIGN(const std::span<const engine::TokenEvent> events, engine.Step());
    if (answer.tokens.empty() && events.empty()) progress.Update(stopwatch.seconds());
    for (const engine::TokenEvent& event : events) {
      progress.End();
      if (event.token) {
        if (answer.tokens.empty()) {
          answer.first_token_seconds = stopwatch.seconds();
          stopwatch = Stopwatch();  // from here on the answer's
        }
        answer.tokens.push_back(*event.token);
        if (Status delivered = on_token(*event.token); !delivered) {
          engine.Cancel(id);
          return Unexpected(std::move(delivered.error()));
        }
      }
      if (event.error) return Unexpected(*event.error);
      if (event.finished) answer.reason = *event.finished;
    }
  }
  answer.decode_seconds = answer.tokens.empty() ? 0 : stopwatch.seconds();
  return answer;
}

std::string StatsText(const engine::EngineStats& before, const engine::EngineStats& after,
                      const Answer& answer) {
  const Cost cost(before, after, answer);
  return fmt::format(
      "prompt    {} tokens computed, {} reused, first token after {:.2f} s ({:.1f} tok/s)\n"
      "answer    {} tokens in {:.2f} s ({:.2f} tok/s), ended by {}\n"
      "experts   {:.1f} % in memory, {} read ({} each token), {:.2f} s waiting for the "
      "drive, "
      "{:.2f} s computing; {} read ahead, {} of them in time\n",
      cost.prompt_tokens, cost.reused_tokens, answer.first_token_seconds, cost.prefill_rate,
      answer.tokens.size(), answer.decode_seconds, cost.decode_rate,
      engine::FinishReasonName(answer.reason), 100 * cost.HitShare(), SizeText(cost.read_bytes),
      SizeText(cost.read_bytes / std::max<uint64_t>(1, cost.prompt_tokens + answer.tokens.size())),
      cost.wait_seconds, cost.expert_seconds, cost.foreseen_reads, cost.foreseen);
}

Json StatsJson(const engine::EngineStats& before, const engine::EngineStats& after,
               const Answer& answer) {
  const Cost cost(before, after, answer);
  Json json;
  json.Set("prompt_tokens", cost.prompt_tokens)
      .Set("reused_tokens", cost.reused_tokens)
      .Set("kv_pages_kept", after.kv.kept_count)
      .Set("kv_pages_forgotten", after.kv.forgotten_count - before.kv.forgotten_count)
      .Set("generated_tokens", uint64_t{answer.tokens.size()})
      .Set("first_token_seconds", answer.first_token_seconds)
      .Set("decode_seconds", answer.decode_seconds)
      .Set("decode_tokens_per_second", cost.decode_rate)
      .Set("expert_hits", cost.hits)
      .Set("expert_misses", cost.misses)
      .Set("expert_read_ahead", cost.foreseen_reads)
      .Set("expert_read_ahead_in_time", cost.foreseen)
      .Set("read_bytes", cost.read_bytes)
      .Set("cache_slots", after.guard.slot_count)
      .Set("cache_shrinks", after.guard.shrink_count - before.guard.shrink_count)
      .Set("cache_grows", after.guard.grow_count - before.guard.grow_count)
      .Set("wait_seconds", cost.wait_seconds)
      .Set("expert_compute_seconds", cost.expert_seconds);
  return json;
}

}  // namespace smoe::cli
