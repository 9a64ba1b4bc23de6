#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace smoe::model {

namespace {

// theta ^ (2i / dim) in f32, from exponents rounded to f32 as the reference has them.
std::vector<float> PositionFrequencies(double theta, uint32_t rotary_dim) {
  std::vector<float> frequencies(rotary_dim / 2);
  for (uint32_t i = 0; i < rotary_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    frequencies[i] = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  return frequencies;
}

double MagnitudeScale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// The dimension whose wave turns `rotations` times over the original context.
double CorrectionDim(double rotations, uint32_t rotary_dim, const checkpoint::RopeConfig& config) {
  const double positions = static_cast<double>(config.original_positions);
  return rotary_dim * std::log(positions / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.theta));
}

// YaRN: fast waves keep their frequency, slow ones are stretched by the factor, a ramp between.
// Source: arXiv:2309.00071 section 3.2; transformers 5.24 _compute_yarn_parameters.
std::vector<float> YarnInvFreq(const checkpoint::RopeConfig& config, uint32_t rotary_dim) {
  double low = CorrectionDim(config.beta_fast, rotary_dim, config);
  double high = CorrectionDim(config.beta_slow, rotary_dim, config);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary_dim) - 1);
  if (low == high) high += 0.001;
  std::vector<float> inv_freq = PositionFrequencies(config.theta, rotary_dim);
  for (uint32_t i = 0; i < inv_freq.size(); ++i) {
    const float kept = 1.0f / inv_freq[i];
    const float stretched = 1.0f / (static_cast<float>(config.factor) * inv_freq[i]);
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float kept_share = 1.0f - ramp;
    inv_freq[i] = stretched * (1.0f - kept_share) + kept * kept_share;
  }
  return inv_freq;
}

double YarnAttentionFactor(const checkpoint::RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  if (config.mscale.value_or(0) != 0 && config.mscale_all_dim.value_or(0) != 0) {
    return MagnitudeScale(config.factor, *config.mscale) /
           MagnitudeScale(config.factor, *config.mscale_all_dim);
  }
  return MagnitudeScale(config.factor, 1.0);
}

}  // namespace

Result<Rope> Rope::Create(const checkpoint::RopeConfig& config, uint32_t head_dim) {
  const double share = config.partial_rotary_factor;
  if (!(share > 0 && share <= 1)) {
    return Invalid("rope: partial_rotary_factor {}, expected above 0 and at most 1", share);
  }
  const auto rotary_dim = static_cast<uint32_t>(head_dim * share);
  if (rotary_dim == 0 || rotary_dim % 2 != 0) {
    return Invalid("rope: {} of head_dim {} dimensions rotate, expected an even number above 0",
                   rotary_dim, head_dim);
  }
  if (config.type != checkpoint::RopeType::kDefault && config.type != checkpoint::RopeType::kYarn) {
    return Unsupported("rope: type {}, this build computes default and yarn",
                       checkpoint::RopeTypeName(config.type));
  }
  Rope rope;
  if (config.type == checkpoint::RopeType::kYarn) {
    if (config.original_positions == 0) {
      return Invalid("rope: yarn without original_max_position_embeddings");
    }
    rope.inv_freq_ = YarnInvFreq(config, rotary_dim);
    rope.attention_factor_ = static_cast<float>(YarnAttentionFactor(config));
  } else {
    rope.inv_freq_ = PositionFrequencies(config.theta, rotary_dim);
    for (float& frequency : rope.inv_freq_) frequency = 1.0f / frequency;
  }
  for (const float frequency : rope.inv_freq_) {
    if (!std::isfinite(frequency)) {
      return Invalid("rope: theta {} and factor {} give the frequency {}, expected finite numbers",
                     config.theta, config.factor, frequency);
    }
  }
  return rope;
}

void Rope::FillRow(size_t position, float* cosines, float* sines) const {
  for (size_t i = 0; i < inv_freq_.size(); ++i) {
    const float angle = static_cast<float>(position) * inv_freq_[i];
    cosines[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * attention_factor_;
    sines[i] = static_cast<float>(std::sin(static_cast<double>(angle))) * attention_factor_;
  }
}

void Rope::Apply(const float* cosines, const float* sines, float* head) const {
  const size_t half = inv_freq_.size();
  for (size_t i = 0; i < half; ++i) {
    const float first = head[i];
    const float second = head[i + half];
    head[i] = first * cosines[i] - second * sines[i];
    head[i + half] = second * cosines[i] + first * sines[i];
  }
}

}  // namespace smoe::model
