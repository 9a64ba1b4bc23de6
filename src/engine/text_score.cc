#include "engine/text_score.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace smoe::engine {

namespace {

// ln of the sum of exp(logit): what turns a logit into ln p.
double LogSumExp(std::span<const float> logits) {
  double largest = -HUGE_VAL;
  for (const float logit : logits) largest = std::max(largest, double{logit});
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  return std::log(sum) + largest;
}

}  // namespace

double Surprise(std::span<const float> logits, uint32_t token) {
  return LogSumExp(logits) - double{logits[token]};
}

double KlDivergence(std::span<const float> a, std::span<const float> b) {
  SMOE_CHECK(a.size() == b.size());
  const double norm_a = LogSumExp(a);
  const double norm_b = LogSumExp(b);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double log_a = double{a[i]} - norm_a;
    const double log_b = double{b[i]} - norm_b;
    sum += std::exp(log_a) * (log_a - log_b);
  }
  // Never below 0 by its definition; rounding may take it there.
  return std::max(sum, 0.0);
}

uint32_t TopToken(std::span<const float> logits) {
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double TextScore::nats_per_token() const {
  return token_count == 0 ? 0 : nats / static_cast<double>(token_count);
}

double TextScore::perplexity() const { return std::exp(nats_per_token()); }

void TextScore::Add(std::span<const float> logits, uint32_t next) {
  nats += Surprise(logits, next);
  ++token_count;
}

Status EvaluateWindows(Engine& engine, std::span<const uint32_t> tokens, size_t window_tokens,
                       const PositionSink& sink) {
  const size_t vocab_size = engine.config().vocab_size;
  for (size_t begin = 0; begin < tokens.size(); begin += window_tokens) {
    const std::span<const uint32_t> window =
        tokens.subspan(begin, std::min(window_tokens, tokens.size() - begin));
    const auto each = [&](size_t first, std::span<const float> logits,
                          const model::StepTaps&) -> Status {
      for (size_t row = 0; row * vocab_size < logits.size(); ++row) {
        const size_t at = first + row;
        const uint32_t* next = at + 1 < window.size() ? &window[at + 1] : nullptr;
        SMOE_TRY(sink(begin + at, logits.subspan(row * vocab_size, vocab_size), next));
      }
      return Ok();
    };
    SMOE_TRY(engine.Evaluate(window, {}, each));
  }
  return Ok();
}

}  // namespace smoe::engine
