#include "engine/compare_logits.h"

#include <optional>
#include <vector>

#include "engine/logit_file.h"

namespace smoe::engine {

double LogitComparison::kl_mean() const {
  return position_count == 0 ? 0 : kl_sum / static_cast<double>(position_count);
}

double LogitComparison::top_token_agreement() const {
  return position_count == 0
             ? 0
             : static_cast<double>(top_token_equal_count) / static_cast<double>(position_count);
}

void LogitComparison::Add(uint64_t position, std::span<const float> logits_a,
                          std::span<const float> logits_b, const uint32_t* next) {
  const double kl = KlDivergence(logits_a, logits_b);
  kl_sum += kl;
  if (kl > kl_max) {
    kl_max = kl;
    kl_max_position = position;
  }
  ++position_count;
  if (TopToken(logits_a) == TopToken(logits_b)) ++top_token_equal_count;
  if (next == nullptr) return;
  a.Add(logits_a, *next);
  b.Add(logits_b, *next);
}

Result<LogitComparison> CompareLogits(const OpenEngineFunction& open_a,
                                      const OpenEngineFunction& open_b,
                                      std::span<const uint32_t> tokens, size_t window_tokens,
                                      const TokenProgress& progress) {
  uint64_t done_count = 0;
  const uint64_t total_count = 2 * uint64_t{tokens.size()};
  SMOE_TRY_ASSIGN(auto engine, open_a());
  const uint32_t vocab_size = engine->config().vocab_size;
  SMOE_TRY_ASSIGN(LogitFile file, LogitFile::Create(tokens.size(), vocab_size));
  const auto keep = [&](size_t position, std::span<const float> logits, const uint32_t*) {
    progress(++done_count, total_count);
    return file.Write(position, logits);
  };
  SMOE_TRY(EvaluateWindows(*engine, tokens, window_tokens, keep));
  engine.reset();
  SMOE_TRY_ASSIGN(engine, open_b());
  if (engine->config().vocab_size != vocab_size) {
    return Invalid("vocab_size: {} and {}: two models?", vocab_size, engine->config().vocab_size);
  }
  LogitComparison comparison;
  std::vector<float> of_a(vocab_size);
  const auto compare = [&](size_t position, std::span<const float> logits,
                           const uint32_t* next) -> Status {
    SMOE_TRY(file.Read(position, of_a));
    comparison.Add(position, of_a, logits, next);
    progress(++done_count, total_count);
    return Ok();
  };
  SMOE_TRY(EvaluateWindows(*engine, tokens, window_tokens, compare));
  return comparison;
}

}  // namespace smoe::engine
