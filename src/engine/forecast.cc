#include "engine/forecast.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace smoe::engine {

namespace {

double Seconds(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

}  // namespace

double SkewedHitShare(double cached) {
  return cached <= 0 ? 0 : std::pow(std::min(cached, 1.0), kSkewExponent);
}

double ExpectedHitShare(double cached) {
  const double left = 1 - std::clamp(cached, 0.0, 1.0);
  return 1 - (1 - SkewedHitShare(cached)) * std::pow(left, kRecencyExponent);
}

double UnionCount(double experts, double top_k, double tokens) {
  return experts * (1 - std::pow(1 - std::min(1.0, top_k / experts), tokens));
}

double Forecast::tokens_per_second() const {
  if (!knows_token()) return 0;
  const auto [shorter, longer] = std::minmax({token_drive_seconds, memory_seconds()});
  return 1 / (longer + kOverlapMissed * shorter);
}

double Forecast::tokens_per_second_bound() const {
  return knows_token() ? 1 / std::max(token_drive_seconds, token_dram_seconds) : 0;
}

double Forecast::first_token_seconds() const {
  const bool is_known = prompt_dram_seconds > 0 && prompt_drive_seconds > 0;
  return is_known ? std::max(prompt_drive_seconds, prompt_dram_seconds) : 0;
}

Forecast ForecastSpeed(const ForecastDemand& demand) {
  Forecast forecast;
  const double expert_bytes = static_cast<double>(demand.expert_bytes);
  const double cached = std::min(1.0, static_cast<double>(demand.slot_count) / demand.expert_count);
  forecast.hit_share = ExpectedHitShare(cached);
  const double token_bytes = expert_bytes * demand.layer_count * demand.top_k;
  const double miss_bytes = token_bytes * (1 - forecast.hit_share);
  const double active_bytes = token_bytes + static_cast<double>(demand.trunk_read_bytes);
  forecast.miss_bytes = static_cast<uint64_t>(miss_bytes);
  forecast.active_bytes = static_cast<uint64_t>(active_bytes);
  forecast.token_drive_seconds = Seconds(miss_bytes, demand.drive_rate);
  forecast.token_dram_seconds = Seconds(active_bytes, demand.dram_rate);

  const size_t chunk = std::min(demand.chunk_tokens, demand.prompt_tokens);
  const double chunks = static_cast<double>(CeilDiv(demand.prompt_tokens, chunk));
  const double experts_per_layer = static_cast<double>(demand.expert_count) / demand.layer_count;
  const double union_bytes =
      expert_bytes * demand.layer_count *
      UnionCount(experts_per_layer, demand.top_k, static_cast<double>(chunk));
  // The first chunk finds an empty cache, the next ones what stayed.
  const double prompt_bytes = union_bytes * (1 + (chunks - 1) * (1 - cached));
  forecast.prompt_bytes = static_cast<uint64_t>(prompt_bytes);
  forecast.prompt_drive_seconds = Seconds(prompt_bytes, demand.drive_rate);
  forecast.prompt_dram_seconds = Seconds(
      chunks * (union_bytes + static_cast<double>(demand.trunk_read_bytes)), demand.dram_rate);
  return forecast;
}

}  // namespace smoe::engine
