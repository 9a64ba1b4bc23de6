#include "convert/synth_recipe.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "convert/random_weights.h"
#include "convert/synth_shape.h"

namespace smoe::convert {
namespace {

constexpr double kSpreadMax = 4;       // almost the same experts for every token
constexpr double kBusySpreadMax = 2;   // beyond it routing is no longer like a trained model's
constexpr double kSpreadUsual = 1.05;  // half of the selections to 8 %, for 8 of 128
constexpr double kSpreadStep = 1024;   // spreads are whole steps: the same on every machine

constexpr double kContextPower = 1;
constexpr double kUpdatePower = 0.5;
constexpr double kContextKept = 0.7;   // of the context's power, averaged once more
constexpr double kSiluPower = 0.3558;  // mean of silu(x)^2 for normal x

constexpr double kRecentPower = 0.7;  // of q and k, in their recent rows
constexpr double kRecentScore = 8;    // attention score of the token itself
constexpr double kRecentDistanceMin = 4;
constexpr double kRecentDistanceMax = 256;
constexpr uint32_t kRecentTokens = 512;  // over which the window's width is counted

double NormalBelow(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

// Of as many experts as there are.
std::vector<double> Quantiles(uint32_t expert_count) {
  std::vector<double> quantiles;
  for (uint32_t e = 0; e < expert_count; ++e) {
    quantiles.push_back(NormalQuantile((e + 0.5) / expert_count));
  }
  return quantiles;
}

std::vector<double> Scaled(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

// The threshold above which top_k experts are expected.
double Threshold(const std::vector<double>& biases, uint32_t top_k) {
  double low = -50;
  double high = 50;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    double count = 0;
    for (const double bias : biases) count += NormalBelow(bias - middle);
    (count > top_k ? low : high) = middle;
  }
  return (low + high) / 2;
}

// Of ascending shares.
double Gini(const std::vector<double>& shares) {
  const double count = static_cast<double>(shares.size());
  double weighted = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    weighted += (2 * static_cast<double>(i) + 1 - count) * shares[i];
  }
  return weighted / count / std::accumulate(shares.begin(), shares.end(), 0.0);
}

// The part of an expert at the edge counts in proportion.
double BusyShare(const std::vector<double>& shares) {
  double wanted = kBusyExperts * static_cast<double>(shares.size());
  double taken = 0;
  for (auto share = shares.rbegin(); share != shares.rend() && wanted > 0; ++share) {
    taken += *share * std::min(1.0, wanted);
    wanted -= 1;
  }
  return taken / std::accumulate(shares.begin(), shares.end(), 0.0);
}

// Experts whose biases are `quantiles` times a spread.
struct Routing {
  std::vector<double> quantiles;
  uint32_t top_k = 0;
  bool renormalise = false;

  RoutingSkew Skew(double spread) const {
    const std::vector<double> biases = Scaled(quantiles, spread);
    const double threshold = Threshold(biases, top_k);
    std::vector<double> shares;
    // Sums of e^logit over all experts and over the chosen, and of its square: of normal logits.
    double all = 0;
    double chosen = 0;
    double squares = 0;
    for (const double bias : biases) {
      shares.push_back(NormalBelow(bias - threshold));
      all += std::exp(bias + 0.5);
      chosen += std::exp(bias + 0.5) * NormalBelow(bias - threshold + 1);
      squares += std::exp(2 * bias + 2) * NormalBelow(bias - threshold + 2);
    }
    const double divisor = renormalise ? chosen : all;
    const double weight_squares = std::min(1.0, squares / (divisor * divisor));
    return {spread, Gini(shares), BusyShare(shares), weight_squares};
  }

  // At the smallest spread at which `figure` of the skew is `wanted`.
  template <class Figure>
  RoutingSkew Solve(double wanted, double spread_max, const Figure& figure) const {
    double low = 0;
    double high = spread_max;
    while (high - low > 0.25 / kSpreadStep) {
      const double middle = (low + high) / 2;
      (figure(Skew(middle)) < wanted ? low : high) = middle;
    }
    return Skew(std::round(high * kSpreadStep) / kSpreadStep);
  }
};

// One of each rotary pair whose angle turns by 1 within the recent distances.
std::vector<uint32_t> RecentRows(const checkpoint::ModelConfig& config,
                                 std::vector<double>* frequencies) {
  std::vector<uint32_t> rows;
  const uint32_t rotary_dim = config.rotary_dim();
  for (uint32_t pair = 0; pair < rotary_dim / 2; ++pair) {
    const double frequency = std::pow(config.rope.theta, -2.0 * pair / rotary_dim);
    if (frequency * kRecentDistanceMin > 1 || frequency * kRecentDistanceMax < 1) continue;
    rows.push_back(pair);
    frequencies->push_back(frequency);
  }
  return rows;
}

// How many equally weighted tokens would average as much away as attention does.
double WindowTokens(const std::vector<double>& frequencies) {
  double sum = 0;
  double squares = 0;
  for (uint32_t distance = 0; distance < kRecentTokens; ++distance) {
    double score = 0;
    for (const double frequency : frequencies) score += std::cos(frequency * distance);
    if (!frequencies.empty()) score *= kRecentScore / static_cast<double>(frequencies.size());
    sum += std::exp(score);
    squares += std::exp(2 * score);
  }
  return sum * sum / squares;
}

void FillLayers(const checkpoint::ModelConfig& config, double window, SynthRecipe* recipe) {
  const double hidden = config.hidden_size;
  const double heads = static_cast<double>(config.num_attention_heads) * config.head_dim;
  const double layer_count = config.num_hidden_layers;
  const double constant = kConstantChannels / hidden;
  double own = 1 - constant;
  double context = 0;
  for (uint32_t i = 0; i < config.num_hidden_layers; ++i) {
    LayerRecipe layer;
    const double before = own + context + constant;
    layer.attention_rms = std::sqrt(before);
    const double seen = (kContextKept * context + own / window) / before;
    const double written = i == 0 ? kContextPower : kUpdatePower / layer_count;
    layer.output_deviation = std::sqrt(written / seen / heads);
    context += written;
    layer.router_rms = std::sqrt(own + context + constant);
    const double update = kUpdatePower / layer_count;
    layer.down_deviation =
        std::sqrt(update / kSiluPower / recipe->skew.weight_squares / config.moe_intermediate_size);
    own += update;
    recipe->layers.push_back(layer);
  }
}

}  // namespace

RoutingSkew SkewOf(double spread, uint32_t expert_count, uint32_t top_k, bool renormalise) {
  return Routing{Quantiles(expert_count), top_k, renormalise}.Skew(spread);
}

Result<RoutingSkew> FindSkew(std::optional<double> gini, uint32_t expert_count, uint32_t top_k,
                             bool renormalise) {
  const Routing routing{Quantiles(expert_count), top_k, renormalise};
  if (!gini) {
    if (routing.Skew(kBusySpreadMax).busy_share < kBusySelections) {
      return routing.Skew(kSpreadUsual);
    }
    return routing.Solve(kBusySelections, kBusySpreadMax,
                         [](const RoutingSkew& skew) { return skew.busy_share; });
  }
  if (*gini == 0) return routing.Skew(0);
  const double gini_max = routing.Skew(kSpreadMax).gini;
  if (!(*gini > 0 && *gini <= gini_max)) {
    return Invalid("--routing-gini: {}, expected 0 to {:.3f}, the most for {} of {} experts", *gini,
                   gini_max, top_k, expert_count);
  }
  return routing.Solve(*gini, kSpreadMax, [](const RoutingSkew& skew) { return skew.gini; });
}

Result<SynthRecipe> MakeSynthRecipe(const checkpoint::ModelConfig& config,
                                    std::optional<double> gini) {
  SynthRecipe recipe;
  SMOE_TRY_ASSIGN(recipe.skew, FindSkew(gini, config.num_experts, config.num_experts_per_tok,
                                        config.norm_topk_prob));
  recipe.biases = Scaled(Quantiles(config.num_experts), recipe.skew.spread);
  recipe.in_deviation = 1 / std::sqrt(config.hidden_size);
  recipe.head_deviation = 2 / std::sqrt(config.hidden_size);

  std::vector<double> frequencies;
  recipe.recent_rows = RecentRows(config, &frequencies);
  const double head_dim = config.head_dim;
  if (!recipe.recent_rows.empty()) {
    recipe.recent_value = std::sqrt(kRecentPower / (1 - kRecentPower) * head_dim /
                                    static_cast<double>(recipe.recent_rows.size()));
  }
  recipe.head_norm = std::sqrt(kRecentScore / kRecentPower / std::sqrt(head_dim));
  FillLayers(config, WindowTokens(frequencies), &recipe);
  return recipe;
}

}  // namespace smoe::convert
