#include "cli/answer_stats.h"

#include <algorithm>

#include "base/memory_limits.h"
#include "base/memory_pressure.h"
#include "engine/cache_figures.h"
#include "engine/memory_gauge.h"

namespace smoe::cli {

namespace {

using engine::Over;

double Seconds(uint64_t ns) { return 1e-9 * static_cast<double>(ns); }

// Reading the prompt up to the first token, or the answer behind it.
struct PhaseCost {
  uint64_t token_count = 0;
  double seconds = 0;
  experts::CacheStats cache;

  double TokensPerSecond() const { return Over(static_cast<double>(token_count), seconds); }
  double ReadRate() const { return Over(static_cast<double>(cache.read_bytes), seconds); }
  double ReadBytesPerToken() const {
    return Over(static_cast<double>(cache.read_bytes), static_cast<double>(token_count));
  }
  double WaitShare() const { return Over(Seconds(cache.wait_ns), seconds); }
};

struct AnswerCost {
  AnswerCost(const engine::EngineStats& before, const engine::EngineStats& after,
             const Answer& answer)
      : whole(engine::CacheSince(before.cache, after.cache)) {
    // Without a first token all of it went into the prompt.
    const engine::EngineStats& middle = answer.tokens.empty() ? after : answer.at_first_token;
    prefill.token_count = middle.prompt_token_count - before.prompt_token_count;
    prefill.seconds = answer.first_token_seconds;
    prefill.cache = engine::CacheSince(before.cache, middle.cache);
    decode.token_count = answer.tokens.empty() ? 0 : answer.tokens.size() - 1;
    decode.seconds = answer.decode_seconds;
    decode.cache = engine::CacheSince(middle.cache, after.cache);
  }
  // What one GiB more would save is asked for the answer's tokens, where there are any.
  const PhaseCost& gauged() const { return decode.token_count != 0 ? decode : prefill; }

  experts::CacheStats whole;
  PhaseCost prefill;
  PhaseCost decode;
};

std::string DriveText(const PhaseCost& cost) {
  if (cost.cache.read_bytes == 0) return "nothing read";
  return fmt::format("{} a token at {:.2f} GB/s, {:.0f} % of the time waiting for it",
                     SizeText(static_cast<uint64_t>(cost.ReadBytesPerToken())),
                     cost.ReadRate() / 1e9, 100 * cost.WaitShare());
}

std::string ReadAheadText(const AnswerCost& cost) {
  const experts::CacheStats& ahead = cost.whole;
  if (ahead.prefetch_count == 0) return "nothing read ahead";
  return fmt::format("{} read ahead ({} foreseen for the prompt, {} guessed), {} of them wanted",
                     ahead.prefetch_count, cost.prefill.cache.prefetch_count,
                     cost.decode.cache.prefetch_count, ahead.prefetch_used_count);
}

std::string GuardText(const engine::EngineSetup& setup, const engine::EngineStats& before,
                      const engine::EngineStats& after) {
  const uint64_t shrinks = after.guard.shrink_count - before.guard.shrink_count;
  const uint64_t grows = after.guard.grow_count - before.guard.grow_count;
  std::string text = fmt::format("cache of {} of {} experts", setup.slot_count, setup.expert_count);
  if (after.guard.slot_count != 0 && after.guard.slot_count != setup.slot_count) {
    text += fmt::format(", now {}", after.guard.slot_count);
  }
  return text + (shrinks + grows == 0
                     ? ", never short of memory"
                     : fmt::format(", shrunk {} and grown {} times", shrinks, grows));
}

std::string ReadsText(const engine::EngineSetup& setup) {
  const std::string& reason = setup.read_setup.reason;
  return reason.empty() ? setup.reads : fmt::format("{}: {}", setup.reads, Printable(reason));
}

Json PhaseJson(const PhaseCost& cost) {
  const experts::CacheStats& cache = cost.cache;
  Json json;
  json.Set("tokens", cost.token_count)
      .Set("seconds", cost.seconds)
      .Set("tokens_per_second", cost.TokensPerSecond())
      .Set("hit_share", engine::HitShare(cache))
      .Set("read_ahead_share", engine::ForeseenShare(cache))
      .Set("expert_hits", cache.hit_count)
      .Set("expert_misses", cache.miss_count)
      .Set("read_ahead", cache.prefetch_count)
      .Set("read_ahead_in_time", cache.prefetch_hit_count)
      .Set("read_ahead_wanted", cache.prefetch_used_count)
      .Set("read_bytes", cache.read_bytes)
      .Set("read_bytes_per_token", cost.ReadBytesPerToken())
      .Set("read_bytes_per_second", cost.ReadRate())
      .Set("wait_seconds", Seconds(cache.wait_ns))
      .Set("wait_share", cost.WaitShare());
  return json;
}

}  // namespace

std::string StatsText(const engine::EngineSetup& setup, const engine::EngineStats& before,
                      const engine::EngineStats& after, const Answer& answer) {
  const AnswerCost cost(before, after, answer);
  const PhaseCost& gauged = cost.gauged();
  const engine::EngineStats& gauge_begin =
      cost.decode.token_count != 0 ? answer.at_first_token : before;
  return fmt::format(
      "prompt    {} tokens computed, {} reused, {} after {:.2f} s ({:.1f} tok/s); {}\n"
      "answer    {} tokens in {:.2f} s ({:.2f} tok/s), ended by {}; {}\n"
      "experts   {:.1f} % in memory by themselves, {:.1f} % read in time; the answer's {:.1f} and "
      "{:.1f} %; {}; {:.2f} s computing\n"
      "memory    {} at most; {}; {}\n"
      "reads     {}\n",
      cost.prefill.token_count, after.reused_token_count - before.reused_token_count,
      answer.tokens.empty() ? "no token" : "first token", answer.first_token_seconds,
      cost.prefill.TokensPerSecond(), DriveText(cost.prefill), answer.tokens.size(),
      answer.decode_seconds, cost.decode.TokensPerSecond(), engine::FinishReasonName(answer.reason),
      DriveText(cost.decode), 100 * engine::HitShare(cost.whole),
      100 * engine::ForeseenShare(cost.whole), 100 * engine::HitShare(cost.decode.cache),
      100 * engine::ForeseenShare(cost.decode.cache), ReadAheadText(cost),
      Seconds(after.expert_compute_ns - before.expert_compute_ns), SizeText(PeakResidentBytes()),
      GuardText(setup, before, after),
      engine::MemoryGaugeText(setup, gauge_begin, after, gauged.token_count), ReadsText(setup));
}

Json StatsJson(const engine::EngineSetup& setup, const engine::EngineStats& before,
               const engine::EngineStats& after, const Answer& answer) {
  const AnswerCost cost(before, after, answer);
  const experts::CacheStats& whole = cost.whole;
  const engine::EngineStats& gauge_begin =
      cost.decode.token_count != 0 ? answer.at_first_token : before;
  Json json;
  json.Set("reads", setup.reads)
      .Set("prompt_tokens", cost.prefill.token_count)
      .Set("reused_tokens", after.reused_token_count - before.reused_token_count)
      .Set("kv_pages_kept", after.kv.kept_count)
      .Set("kv_pages_forgotten", after.kv.forgotten_count - before.kv.forgotten_count)
      .Set("generated_tokens", uint64_t{answer.tokens.size()})
      .Set("first_token_seconds", answer.tokens.empty() ? Json() : Json(answer.first_token_seconds))
      .Set("decode_seconds", answer.decode_seconds)
      .Set("decode_tokens_per_second", cost.decode.TokensPerSecond())
      .Set("expert_hits", whole.hit_count)
      .Set("expert_misses", whole.miss_count)
      .Set("expert_rereads", whole.reread_count)
      .Set("expert_read_ahead", whole.prefetch_count)
      .Set("expert_read_ahead_in_time", whole.prefetch_hit_count)
      .Set("expert_read_idle", whole.idle_count)
      .Set("expert_read_idle_wanted", whole.idle_used_count)
      .Set("expert_read_idle_wasted", whole.idle_wasted_count)
      .Set("read_bytes", whole.read_bytes)
      .Set("cache_slots", after.guard.slot_count)
      .Set("cache_shrinks", after.guard.shrink_count - before.guard.shrink_count)
      .Set("cache_grows", after.guard.grow_count - before.guard.grow_count)
      .Set("wait_seconds", Seconds(whole.wait_ns))
      .Set("expert_compute_seconds", Seconds(after.expert_compute_ns - before.expert_compute_ns))
      .Set("peak_bytes", PeakResidentBytes())
      .Set("one_gib_more_saves_bytes_per_token",
           engine::GaugeSavedBytesPerToken(gauge_begin, after, cost.gauged().token_count))
      .Set("prefill", PhaseJson(cost.prefill))
      .Set("decode", PhaseJson(cost.decode));
  return json;
}

}  // namespace smoe::cli
