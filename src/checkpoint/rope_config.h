// checkpoint/rope_config.h: the rope of a config, from three generations of keys.
//
//   rope_theta, rope_scaling {type | rope_type, factor, ...}       up to transformers 4
//   rope_parameters {rope_type, rope_theta, factor, ...}           transformers 5
//   partial_rotary_factor at the top or inside either, rotary_dim  (A08)
// A value inside rope_scaling or rope_parameters wins over the same at the top.
#pragma once

#include "checkpoint/config_reader.h"
#include "checkpoint/model_config.h"

namespace smoe::checkpoint {

// `family_default` has the theta and the partial_rotary_factor of the family, and its whole rope if
// the config has neither rope_scaling nor rope_parameters (gpt_oss: YaRN).
// Requires config->max_position_embeddings and head_dim to be known.
// Source: transformers 5.24 modeling_rope_utils.py, convert_rope_params_to_dict,
//         standardize_rope_params, _compute_yarn_parameters.
void ReadRope(ConfigReader& reader, const RopeConfig& family_default, ModelConfig* config);

}  // namespace smoe::checkpoint
