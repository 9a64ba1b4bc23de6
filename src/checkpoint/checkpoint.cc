#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "checkpoint/name_list.h"
#include "io/file.h"

namespace smoe::checkpoint {

namespace {

namespace fs = std::filesystem;

// nullopt where the file is absent.
Result<std::optional<std::string>> ReadIfThere(const fs::path& path, uint64_t size_max) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::optional<std::string>();
  SMOE_TRY_ASSIGN(std::string content, io::ReadWholeFile(path.string(), size_max));
  return std::optional<std::string>(std::move(content));
}

Result<std::optional<std::string>> ReadChatTemplate(const fs::path& folder) {
  SMOE_TRY_ASSIGN(auto jinja, ReadIfThere(folder / "chat_template.jinja", kConfigBytesMax));
  if (jinja) return jinja;
  const fs::path path = folder / "chat_template.json";
  SMOE_TRY_ASSIGN(const auto text, ReadIfThere(path, kConfigBytesMax));
  if (!text) return std::optional<std::string>();
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(*text, path.string()));
  const Json* found = json.Find("chat_template");
  if (found == nullptr || found->AsString() == nullptr) {
    return Corrupt("{}: chat_template: expected a string, found {}", path.string(),
                   found == nullptr ? "none" : found->type_name());
  }
  return std::optional<std::string>(*found->AsString());
}

// The config's claim against the layers that have experts. Empty: it makes none, or they agree.
std::string DescribeDisagreement(const ModelConfig& config, const std::vector<bool>& found) {
  if (config.layer_is_sparse.empty() || config.layer_is_sparse == found) return {};
  for (size_t i = 0; i < found.size(); ++i) {
    if (config.layer_is_sparse[i] == found[i]) continue;
    return fmt::format("layer {}: the config says {}, the tensors {} (config {}, tensors {})", i,
                       config.layer_is_sparse[i] ? "sparse" : "dense",
                       found[i] ? "have experts" : "have none",
                       LayerKindsText(config.layer_is_sparse), LayerKindsText(found));
  }
  return {};
}

std::vector<bool> SparseMap(const ModelConfig& config, const std::vector<uint32_t>& sparse_layers) {
  std::vector<bool> is_sparse(config.num_hidden_layers, false);
  for (const uint32_t layer : sparse_layers) {
    if (layer < is_sparse.size()) is_sparse[layer] = true;
  }
  return is_sparse;
}

std::string ExpertSentence(const ExpertLayout& experts) {
  size_t mtp_count = 0;
  for (const ExpertLayer& layer : experts.layers()) mtp_count += layer.is_mtp ? 1 : 0;
  std::string text =
      fmt::format("experts: {}, {} in each of {} layers, {} x {}", experts.naming(),
                  experts.layers().front().expert_count, experts.layers().size() - mtp_count,
                  experts.intermediate_size(), experts.hidden_size());
  if (mtp_count != 0) text += fmt::format(", and in {} for multi-token prediction", mtp_count);
  if (experts.has_biases()) text += ", with biases";
  return text;
}

}  // namespace

std::string LayerKindsText(const std::vector<bool>& layer_is_sparse) {
  std::string text;
  for (const bool is_sparse : layer_is_sparse) {
    if (!text.empty()) text += ' ';
    text += is_sparse ? 'S' : 'D';
  }
  return text;
}

Result<SideFiles> ReadSideFiles(const std::string& path) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  const fs::path config_path = is_folder ? fs::path(path) / "config.json" : fs::path(path);
  const fs::path folder = config_path.parent_path();
  SideFiles files;
  SMOE_TRY_ASSIGN(auto config, ReadIfThere(config_path, kConfigBytesMax));
  if (!config) return Invalid("{}: no such file; a model needs its config", config_path.string());
  files.config = std::move(*config);
  SMOE_TRY_ASSIGN(files.generation_config,
                  ReadIfThere(folder / "generation_config.json", kConfigBytesMax));
  SMOE_TRY_ASSIGN(files.tokenizer, ReadIfThere(folder / "tokenizer.json", kTokenizerBytesMax));
  SMOE_TRY_ASSIGN(files.tokenizer_config,
                  ReadIfThere(folder / "tokenizer_config.json", kConfigBytesMax));
  SMOE_TRY_ASSIGN(files.chat_template, ReadChatTemplate(folder));
  return files;
}

Result<Checkpoint> OpenCheckpoint(const std::string& path) {
  Checkpoint out;
  out.path = path;
  SMOE_TRY_ASSIGN(out.side_files, ReadSideFiles(path));
  const std::string config_path = (fs::path(path) / "config.json").string();
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(out.side_files.config, config_path));
  SMOE_TRY_ASSIGN(out.config, ParseModelConfig(json, config_path));
  SMOE_TRY_ASSIGN(out.files, TensorFiles::Open(path));
  auto experts = ExpertLayout::Detect(out.files, out.config);
  if (!experts) return While(path, std::move(experts));
  out.experts = std::move(*experts);

  std::vector<uint32_t> sparse_layers;
  for (const ExpertLayer& layer : out.experts.layers()) {
    if (!layer.is_mtp) sparse_layers.push_back(layer.layer_index);
  }
  const std::string problem =
      DescribeDisagreement(out.config, SparseMap(out.config, sparse_layers));
  if (!problem.empty()) return Corrupt("{}: {}", path, problem);
  auto facts = InspectTrunk(out.files, out.config, sparse_layers);
  if (!facts) return While(path, std::move(facts));
  out.facts = std::move(*facts);
  out.facts.decisions.insert(out.facts.decisions.begin() + 1, ExpertSentence(out.experts));
  if (!out.experts.unknown_tensors().empty()) {
    out.facts.warnings.push_back(fmt::format("{} tensors of experts are not known and not used: {}",
                                             out.experts.unknown_tensors().size(),
                                             ListNames(out.experts.unknown_tensors())));
  }
  return out;
}

}  // namespace smoe::checkpoint
