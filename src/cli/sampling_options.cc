#include "cli/sampling_options.h"

#include <algorithm>
#include <utility>

#include "base/json.h"

namespace smoe::cli {

namespace {

// What `read` (AsDouble, ...) makes of a key's value; absent and null are as good as not said.
template <class T>
Status ReadKey(const Json& config, const char* key, std::optional<T> (Json::*read)() const,
               const char* expected, T* value) {
  const Json* found = config.Find(key);
  if (found == nullptr || found->is_null()) return Ok();
  const std::optional<T> parsed = (found->*read)();
  if (!parsed) return Corrupt("{}: {}, expected {}", key, found->Dump(), expected);
  *value = *parsed;
  return Ok();
}

// Greedy unless the model asks for sampling, as in the reference library.
Result<engine::SamplerOptions> ModelDefaults(const Json& config) {
  constexpr char kNumber[] = "a number";
  engine::SamplerOptions sampling;
  bool do_sample = false;
  SMOE_TRY(ReadKey(config, "repetition_penalty", &Json::AsDouble, kNumber,
                   &sampling.repetition_penalty));
  SMOE_TRY(ReadKey(config, "do_sample", &Json::AsBool, "true or false", &do_sample));
  if (!do_sample) return sampling;
  sampling.temperature = 1;
  SMOE_TRY(ReadKey(config, "temperature", &Json::AsDouble, kNumber, &sampling.temperature));
  SMOE_TRY(ReadKey(config, "top_p", &Json::AsDouble, kNumber, &sampling.top_p));
  SMOE_TRY(ReadKey(config, "min_p", &Json::AsDouble, kNumber, &sampling.min_p));
  uint64_t top_k = sampling.top_k;
  SMOE_TRY(ReadKey(config, "top_k", &Json::AsUint, "0 (off) or more", &top_k));
  sampling.top_k = static_cast<uint32_t>(std::min<uint64_t>(top_k, ~0U));
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
    auto defaults = ModelDefaults(config);
    if (!defaults) return While("generation_config.json", std::move(defaults));
    sampling = *defaults;
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
