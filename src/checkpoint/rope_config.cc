#include "checkpoint/rope_config.h"

#include <cmath>
#include <string>

namespace smoe::checkpoint {

namespace {

struct RopeTypeRow {
  const char* name;
  RopeType type;
};

constexpr RopeTypeRow kRopeTypes[] = {
    {"default", RopeType::kDefault}, {"yarn", RopeType::kYarn},
    {"linear", RopeType::kLinear},   {"dynamic", RopeType::kDynamic},
    {"llama3", RopeType::kLlama3},   {"longrope", RopeType::kLongRope},
    {"mrope", RopeType::kDefault},  // differs for images only: text has equal positions
};

// rope_scaling if it says anything, else rope_parameters; an empty object says nothing.
const Json* FindParameters(ConfigReader& reader, const char** name) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = reader.Find(key);
    if (value == nullptr) continue;
    if (!value->is_object()) {
      reader.Refuse(
          Invalid("{}: {}: {}, expected an object", reader.path(), key, JsonText(*value)));
      continue;
    }
    if (value->AsObject()->empty()) continue;
    *name = key;
    return value;
  }
  return nullptr;
}

// One object of rope keys, with complaints that name it.
class RopeReader {
 public:
  RopeReader(ConfigReader& reader, const Json* parameters, const char* name)
      : reader_(reader), parameters_(parameters), name_(name) {}

  // Inside the object, else at the top of the config.
  double Positive(const char* key, double fallback) const {
    const auto inside = OptionalNumber(key);
    return inside ? *inside : reader_.Positive(key, fallback);
  }

  std::optional<double> OptionalNumber(const char* key) const {
    const Json* value = parameters_ == nullptr ? nullptr : parameters_->Find(key);
    if (value == nullptr) return std::nullopt;
    const auto number = value->AsDouble();
    if (number && std::isfinite(*number) && *number >= 0) return number;
    reader_.Refuse(Invalid("{}: {}.{}: {}, expected a number of at least 0", reader_.path(), name_,
                           key, JsonText(*value)));
    return std::nullopt;
  }

  bool Flag(const char* key, bool fallback) const {
    const Json* value = parameters_ == nullptr ? nullptr : parameters_->Find(key);
    if (value == nullptr) return fallback;
    if (!value->AsBool()) {
      reader_.Refuse(Invalid("{}: {}.{}: {}, expected true or false", reader_.path(), name_, key,
                             JsonText(*value)));
    }
    return value->AsBool().value_or(fallback);
  }

  RopeType Type() const {
    const Json* value = parameters_->Find("rope_type");
    if (value == nullptr) value = parameters_->Find("type");
    if (value == nullptr) return RopeType::kDefault;
    for (const RopeTypeRow& row : kRopeTypes) {
      if (value->AsString() != nullptr && *value->AsString() == row.name) return row.type;
    }
    reader_.Refuse(
        Invalid("{}: {}: rope type {}, expected default, yarn, linear, dynamic, llama3 or "
                "longrope",
                reader_.path(), name_, JsonText(*value)));
    return RopeType::kDefault;
  }

 private:
  ConfigReader& reader_;
  const Json* parameters_;
  const char* name_;
};

void ReadYarn(const RopeReader& parameters, ConfigReader& reader, const ModelConfig& config,
              RopeConfig* rope) {
  // A zero counts as absent in the reference, which writes `value or 32`.
  const auto or_default = [&](const char* key, double fallback) {
    const auto value = parameters.OptionalNumber(key);
    return value && *value != 0 ? *value : fallback;
  };
  const double positions = static_cast<double>(config.max_position_embeddings);
  // At the top of the config it wins, as it does in the reference.
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const double original = reader.Positive(kOriginal, or_default(kOriginal, positions));
  if (!(original >= 1) || original > static_cast<double>(kPositionCountMax)) {
    reader.Refuse(Invalid("{}: {}: {}, expected 1 to {}", reader.path(), kOriginal, original,
                          kPositionCountMax));
    return;
  }
  rope->original_positions = static_cast<uint64_t>(original);
  rope->factor = or_default("factor", positions / original);
  rope->beta_fast = or_default("beta_fast", 32.0);
  rope->beta_slow = or_default("beta_slow", 1.0);
  rope->attention_factor = parameters.OptionalNumber("attention_factor");
  rope->mscale = parameters.OptionalNumber("mscale");
  rope->mscale_all_dim = parameters.OptionalNumber("mscale_all_dim");
  rope->truncate = parameters.Flag("truncate", true);
}

}  // namespace

const char* RopeTypeName(RopeType type) {
  for (const RopeTypeRow& row : kRopeTypes) {
    if (row.type == type) return row.name;
  }
  return "unknown";
}

void ReadRope(ConfigReader& reader, const RopeConfig& family_default, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  const char* name = "rope_parameters";
  const Json* found = FindParameters(reader, &name);
  const RopeReader parameters(reader, found, name);
  if (found == nullptr) {
    rope = family_default;
  } else if (found->Find("full_attention") != nullptr || found->Find("sliding_attention")) {
    reader.Refuse(
        Unsupported("{}: {}: one rope per layer type is not supported", reader.path(), name));
    return;
  } else {
    rope.type = parameters.Type();
  }
  rope.theta = parameters.Positive("rope_theta", family_default.theta);
  if (!(rope.theta > 0)) {
    reader.Refuse(Invalid("{}: {}.rope_theta: 0, expected more", reader.path(), name));
  }
  reader.CheckF32("rope_theta", rope.theta);
  if (found != nullptr && rope.type == RopeType::kYarn) {
    ReadYarn(parameters, reader, *config, &rope);
  } else if (found != nullptr && rope.type != RopeType::kDefault) {
    rope.factor = parameters.OptionalNumber("factor").value_or(1.0);
  }
  double partial = family_default.partial_rotary_factor;
  const uint32_t rotary_dim = reader.Count({"rotary_dim"}, kHeadDimMax, 0);
  if (rotary_dim != 0) partial = double{1} * rotary_dim / config->head_dim;
  partial = parameters.Positive("partial_rotary_factor", partial);
  if (!(partial > 0) || partial > 1) {
    reader.Refuse(Invalid("{}: partial_rotary_factor: {}, expected above 0 and at most 1",
                          reader.path(), partial));
  }
  rope.partial_rotary_factor = partial;
}

uint32_t ModelConfig::rotary_dim() const {
  return static_cast<uint32_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
}

}  // namespace smoe::checkpoint
