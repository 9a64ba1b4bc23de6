// Fuzz target of config.json: parses the input as JSON, then as a config. Asserts the limits that
// the rest of the program relies on.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "checkpoint/model_config.h"

// Named by libFuzzer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(size, '\0');
  if (size != 0) std::memcpy(text.data(), data, size);
  const auto json = smoe::Json::Parse(text, "input");
  if (!json) return 0;
  const auto config = smoe::checkpoint::ParseModelConfig(*json, "input");
  if (!config) return 0;
  SMOE_CHECK(config->hidden_size >= 1 && config->hidden_size <= smoe::checkpoint::kHiddenSizeMax);
  SMOE_CHECK(config->num_hidden_layers >= 1 && config->head_dim >= 1);
  SMOE_CHECK(config->num_attention_heads % config->num_key_value_heads == 0);
  SMOE_CHECK(config->num_experts == 0 || config->num_experts_per_tok <= config->num_experts);
  SMOE_CHECK(config->layer_is_sparse.empty() ||
             config->layer_is_sparse.size() == config->num_hidden_layers);
  SMOE_CHECK(config->layer_is_sliding.empty() ||
             config->layer_is_sliding.size() == config->num_hidden_layers);
  SMOE_CHECK(config->rotary_dim() <= config->head_dim);
  SMOE_CHECK(config->rope.theta > 0 && config->rope.factor > 0);
  return 0;
}
