#include "cli/sampling_options.h"

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace smoe::cli {

namespace {

double NumberOr(const Json& config, const char* key, double otherwise) {
  const Json* value = config.Find(key);
  return value == nullptr ? otherwise : value->AsDouble().value_or(otherwise);
}

// Greedy unless the model asks for sampling, as in the reference library.
engine::SamplerOptions ModelDefaults(const Json& config) {
  engine::SamplerOptions sampling;
  sampling.repetition_penalty = NumberOr(config, "repetition_penalty", 1);
  const Json* do_sample = config.Find("do_sample");
  if (do_sample == nullptr || !do_sample->AsBool().value_or(false)) return sampling;
  sampling.temperature = NumberOr(config, "temperature", 1);
  sampling.top_p = NumberOr(config, "top_p", 1);
  sampling.min_p = NumberOr(config, "min_p", 0);
  const Json* top_k = config.Find("top_k");
  if (top_k != nullptr) {
    sampling.top_k = static_cast<uint32_t>(std::min<uint64_t>(top_k->AsUint().value_or(0), ~0u));
  }
  return sampling;
}

// "top_p: 3, ..." as "--top-p: 3, ...": the message names what the user typed.
std::string WithFlag(const std::string& message) {
  const size_t colon = message.find(':');
  std::string flag = "--" + message.substr(0, colon);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag + message.substr(std::min(colon, message.size()));
}

}  // namespace

void DefineSamplingOptions(Arguments& arguments, SamplingOptions* options) {
  arguments.Group("Sampling (default: what the model's generation_config.json says)");
  arguments.Option("--temperature", &options->temperature, "X", "0: always the likeliest token");
  arguments.Option("--top-k", &options->top_k, "N", "Only the N likeliest tokens; 0: off");
  arguments.Option("--top-p", &options->top_p, "X", "Only the likeliest that add up to X; 1: off");
  arguments.Option("--min-p", &options->min_p, "X", "Only those within X of the likeliest; 0: off");
  arguments.Option("--repetition-penalty", &options->repetition_penalty, "X",
                   "Makes what was said before less likely; 1: off");
  arguments.Option("--seed", &options->seed, "N", "Same seed, same answer (default: 0)");
  arguments.Group("");
}

Result<engine::SamplerOptions> ChooseSampling(const SamplingOptions& options,
                                              const std::optional<std::string>& generation_config) {
  engine::SamplerOptions sampling;
  if (generation_config) {
    SMOE_TRY_ASSIGN(const Json config, Json::Parse(*generation_config, "generation_config.json"));
    sampling = ModelDefaults(config);
  }
  const engine::SamplerOptions model_defaults = sampling;
  sampling.temperature = options.temperature.value_or(sampling.temperature);
  sampling.top_k = options.top_k.value_or(sampling.top_k);
  sampling.top_p = options.top_p.value_or(sampling.top_p);
  sampling.min_p = options.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = options.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.seed = options.seed;
  const Status sound = engine::CheckSamplerOptions(sampling);
  if (sound) return sampling;
  if (Status given = engine::CheckSamplerOptions(model_defaults); !given) {
    return While("generation_config.json", std::move(given));
  }
  return Invalid("{}", WithFlag(sound.error().message()));
}

}  // namespace smoe::cli
