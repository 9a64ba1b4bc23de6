// checkpoint/model_families.h: what each family of models calls its values, and its defaults.
//
// A table with one row and one function per family; a new family is a new row.
// Source: the configuration_*.py and modeling_*.py of transformers 5.24, and those of
//         deepseek-ai/deepseek-moe-16b-base for kDeepseek.
#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/config_reader.h"
#include "checkpoint/model_config.h"

namespace smoe::checkpoint {

// What a family's configuration class says when the config does not.
struct FamilyDefaults {
  double rms_norm_eps = 1e-6;
  uint64_t positions = 0;
  uint32_t kv_heads = 0;  // 0: as many as attention heads
  uint32_t head_dim = 0;  // 0: hidden_size / heads
  bool tied = false;
  bool norm_topk_prob = false;
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;
};

struct FamilyRow {
  const char* model_type;
  Family family;
  FamilyDefaults defaults;
  // Reads what is the family's own: experts, widths, router, layer kinds, windows.
  // Requires the sizes and heads of the config to be read already.
  void (*parse)(ConfigReader& reader, ModelConfig* config);
};

// By model_type, with or without "_text"; the row of kUnknown for one we do not know.
const FamilyRow& FindFamily(std::string_view model_type);

}  // namespace smoe::checkpoint
