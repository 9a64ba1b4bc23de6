#include "cli/profile_text.h"

#include <algorithm>
#include <vector>

namespace smoe::cli {

namespace {

constexpr size_t kBarWidth = 30;

struct Part {
  const char* name;
  const char* what;
  uint64_t ns;
};

uint64_t Less(uint64_t from, uint64_t what) { return from - std::min(from, what); }

// All parts of a step; they add up to its wall time.
std::vector<Part> PartsOf(const engine::StepTimes& times) {
  using model::Phase;
  const auto phase = [&](Phase which) {
    return times.profile.phase_ns[static_cast<size_t>(which)];
  };
  const uint64_t phases = times.profile.total_ns - times.profile.rest_ns();
  return {
      {"projections", "q, k, v and the output of attention", phase(Phase::kProjections)},
      {"attend", "rotation, keys and values, scores", phase(Phase::kAttend)},
      {"router", "which experts", phase(Phase::kRouter)},
      {"experts", "routed ones, once they are there", Less(phase(Phase::kExperts), times.wait_ns)},
      {"waiting", "for the drive", times.wait_ns},
      {"dense", "dense layers and shared experts", phase(Phase::kDense)},
      {"head", "logits over the vocabulary", phase(Phase::kHead)},
      {"rest", "embedding, norms, additions, sampling", Less(times.wall_ns, phases)}};
}

// Shares of the threads' time, of 1: without work inside loops, and between them.
struct Idle {
  double inside = 0;
  double between = 0;
};

Idle IdleOf(const engine::StepTimes& times, size_t thread_count) {
  const auto threads = static_cast<double>(thread_count);
  const double all = threads * static_cast<double>(times.wall_ns);
  if (all == 0) return {};
  const auto loops = static_cast<double>(times.pool.loop_ns);
  Idle idle;
  idle.inside = std::max(0.0, threads * loops - static_cast<double>(times.pool.busy_ns)) / all;
  // Between loops the caller works and the others have nothing to do.
  idle.between = std::max(0.0, (threads - 1) * (static_cast<double>(times.wall_ns) - loops)) / all;
  return idle;
}

double Milliseconds(uint64_t ns, uint64_t unit_count) {
  return unit_count == 0 ? 0 : 1e-6 * static_cast<double>(ns) / static_cast<double>(unit_count);
}

double ShareOf(uint64_t ns, const engine::StepTimes& times) {
  return times.wall_ns == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(times.wall_ns);
}

}  // namespace

std::string ProfileText(std::string_view title, const engine::StepTimes& times, uint64_t unit_count,
                        size_t thread_count) {
  std::string text = fmt::format("{}: {:.2f} ms\n", title, Milliseconds(times.wall_ns, unit_count));
  for (const Part& part : PartsOf(times)) {
    const double share = ShareOf(part.ns, times);
    const auto filled =
        std::min(kBarWidth, static_cast<size_t>(share * static_cast<double>(kBarWidth) + 0.5));
    text += fmt::format("  {:<12}{:>9.3f} ms {:>5.1f} %  {:<{}}  {}\n", part.name,
                        Milliseconds(part.ns, unit_count), 100 * share, std::string(filled, '#'),
                        kBarWidth, part.what);
  }
  const Idle idle = IdleOf(times, thread_count);
  return text + fmt::format(
                    "  {} thread{} idle {:.1f} % of their time: {:.1f} % inside loops, {:.1f} % "
                    "between them; {:.0f} loops\n",
                    thread_count, thread_count == 1 ? "" : "s", 100 * (idle.inside + idle.between),
                    100 * idle.inside, 100 * idle.between,
                    unit_count == 0 ? 0.0
                                    : static_cast<double>(times.pool.loop_count) /
                                          static_cast<double>(unit_count));
}

Json ProfileJson(const engine::StepTimes& times, uint64_t unit_count, size_t thread_count) {
  Json json;
  json.Set("milliseconds", Milliseconds(times.wall_ns, unit_count));
  Json parts;
  for (const Part& part : PartsOf(times)) {
    parts.Set(part.name, Json()
                             .Set("milliseconds", Milliseconds(part.ns, unit_count))
                             .Set("share", ShareOf(part.ns, times)));
  }
  const Idle idle = IdleOf(times, thread_count);
  json.Set("parts", std::move(parts))
      .Set("idle_share_inside_loops", idle.inside)
      .Set("idle_share_between_loops", idle.between)
      .Set("loops", unit_count == 0 ? 0.0
                                    : static_cast<double>(times.pool.loop_count) /
                                          static_cast<double>(unit_count));
  return json;
}

}  // namespace smoe::cli
