// model/checkpoint_model_for_test.h: a model on a checkpoint folder with experts computed by plain
// loops.
//
// For tests only. The experts here share nothing with the cache, the stores and the kernels: sums
// in double, weights straight from the safetensors file by name.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/files_for_test.h"
#include "checkpoint/safetensors.h"
#include "model/model.h"

namespace smoe::model {

inline std::string SharedPath(const std::string& below) {
  return std::string(SMOE_SHARED_DIR) + "/reference/" + below;
}

inline std::vector<float> ReadFloats(const checkpoint::TensorFiles& files,
                                     const std::string& name) {
  const checkpoint::TensorInfo* info = files.Find(name);
  EXPECT_NE(info, nullptr) << name;
  if (info == nullptr) return {};
  std::vector<std::byte> bytes(info->size);
  EXPECT_TRUE(files.Read(*info, 0, bytes).has_value());
  std::vector<float> values(info->size / tensor::DTypeBytes(info->dtype));
  tensor::ToF32({info->dtype, {values.size()}, bytes}, 0, values);
  return values;
}

inline std::vector<uint32_t> ReadIds(const checkpoint::TensorFiles& files,
                                     const std::string& name) {
  const checkpoint::TensorInfo* info = files.Find(name);
  EXPECT_NE(info, nullptr) << name;
  if (info == nullptr) return {};
  std::vector<uint32_t> ids(info->size / sizeof(uint32_t));
  EXPECT_TRUE(files.Read(*info, 0, std::as_writable_bytes(std::span(ids))).has_value());
  return ids;
}

inline float LargestMagnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

inline float LargestDifference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

// Knows which layers have experts, and holds none: the backend below reads them itself.
class NamedStore final : public store::ExpertStore {
 public:
  NamedStore(std::string path, std::vector<store::StoreLayer> layers, uint32_t hidden_size)
      : path_(std::move(path)), layers_(std::move(layers)), hidden_size_(hidden_size) {}
  const std::string& path() const override { return path_; }
  const char* format_name() const override { return "test"; }
  std::span<const store::StoreLayer> layers() const override { return layers_; }
  uint32_t expert_count() const override { return 0; }
  uint32_t hidden_size() const override { return hidden_size_; }
  uint32_t intermediate_size() const override { return 0; }
  uint64_t slot_bytes() const override { return 0; }
  bool direct_io() const override { return false; }
  bool FallBackToBuffered() override { return false; }
  store::ExpertLocation Locate(store::ExpertId) const override { return {}; }
  Status Admit(store::ExpertId, MutableBytes) const override { return Ok(); }
  tensor::ExpertWeights View(store::ExpertId, Bytes) const override { return {}; }

 private:
  std::string path_;
  std::vector<store::StoreLayer> layers_;
  uint32_t hidden_size_;
};

class PlainBackend : public experts::ExpertBackend {
 public:
  PlainBackend(const checkpoint::TensorFiles& files, size_t hidden_size)
      : files_(files), hidden_(hidden_size) {}

  Status Run(const experts::RoutedRows& rows, std::vector<experts::RowFailure>* failures) override {
    for (size_t row = 0; row < rows.row_count; ++row) {
      std::vector<double> sum(hidden_);
      for (size_t rank = 0; rank < rows.top_k; ++rank) {
        const size_t at = row * rows.top_k + rank;
        AddExpert(rows.layer_index, rows.expert_ids[at], rows.hidden + row * hidden_,
                  static_cast<double>(rows.weights[at]), &sum);
      }
      for (size_t i = 0; i < hidden_; ++i) rows.out[row * hidden_ + i] = static_cast<float>(sum[i]);
      row_count_ += 1;
    }
    if (after_run) after_run(rows, failures);
    return Ok();
  }
  experts::CacheStats stats() const override { return {}; }
  uint64_t compute_ns() const override { return 0; }
  size_t row_count() const { return row_count_; }

  // What a test wants to go wrong.
  std::function<void(const experts::RoutedRows&, std::vector<experts::RowFailure>*)> after_run;

 private:
  struct Expert {
    std::vector<float> gate, up, down;
  };

  const Expert& Find(uint32_t layer, uint32_t expert) {
    const auto [found, is_new] = experts_.try_emplace({layer, expert});
    if (is_new) {
      const std::string plain = fmt::format("model.layers.{}.mlp.experts.{}.", layer, expert);
      const std::string mixtral =
          fmt::format("model.layers.{}.block_sparse_moe.experts.{}.", layer, expert);
      const bool is_plain = files_.Find(plain + "gate_proj.weight") != nullptr;
      found->second.gate =
          ReadFloats(files_, is_plain ? plain + "gate_proj.weight" : mixtral + "w1.weight");
      found->second.up =
          ReadFloats(files_, is_plain ? plain + "up_proj.weight" : mixtral + "w3.weight");
      found->second.down =
          ReadFloats(files_, is_plain ? plain + "down_proj.weight" : mixtral + "w2.weight");
    }
    return found->second;
  }

  void AddExpert(uint32_t layer, uint32_t id, const float* x, double weight,
                 std::vector<double>* sum) {
    const Expert& expert = Find(layer, id);
    const size_t width = expert.gate.size() / hidden_;
    std::vector<double> inner(width);
    for (size_t row = 0; row < width; ++row) {
      double gate = 0;
      double up = 0;
      for (size_t col = 0; col < hidden_; ++col) {
        gate += double{expert.gate[row * hidden_ + col]} * x[col];
        up += double{expert.up[row * hidden_ + col]} * x[col];
      }
      inner[row] = gate / (1 + std::exp(-gate)) * up;
    }
    for (size_t row = 0; row < hidden_; ++row) {
      double down = 0;
      for (size_t col = 0; col < width; ++col) down += expert.down[row * width + col] * inner[col];
      (*sum)[row] += weight * down;
    }
  }

  const checkpoint::TensorFiles& files_;
  const size_t hidden_;
  size_t row_count_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, Expert> experts_;
};

inline std::string DeepseekFolder() {
  return std::string(SMOE_SOURCE_DIR) + "/tests/golden/deepseek_v1";
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A checkpoint in memory, to be changed and written again.
struct EditableFolder {
  Json config;
  std::vector<checkpoint::TestTensor> tensors;

  explicit EditableFolder(const std::string& path) {
    auto json = Json::Parse(ReadText(path + "/config.json"), path);
    EXPECT_TRUE(json.has_value());
    config = *json;
    auto files = checkpoint::TensorFiles::Open(path);
    EXPECT_TRUE(files.has_value());
    for (const auto& [name, info] : files->tensors()) {
      std::string data(info.size, '\0');
      EXPECT_TRUE(files->Read(info, 0, std::as_writable_bytes(std::span(data))).has_value());
      tensors.push_back({name, info.dtype, info.shape, std::move(data)});
    }
  }
  bool Has(const std::string& name) const {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& tensor) { return tensor.name == name; });
  }
  checkpoint::TestTensor& Tensor(const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& tensor) { return tensor.name == name; });
    EXPECT_NE(found, tensors.end()) << name;
    return *found;
  }
  void Remove(const std::string& name) {
    std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; });
  }
  // The same values for every element, in f32.
  void Fill(const std::string& name, float value) {
    checkpoint::TestTensor& tensor = Tensor(name);
    tensor.dtype = tensor::DType::kF32;
    tensor.data =
        checkpoint::F32Data(std::vector<float>(*tensor::ElementCount(tensor.shape), value));
  }
  std::unique_ptr<checkpoint::TestFolder> Write() const {
    auto folder = std::make_unique<checkpoint::TestFolder>();
    folder->Write("config.json", config.Dump(2));
    folder->Write("model.safetensors", checkpoint::MakeSafetensors(tensors));
    return folder;
  }
};

// The parts of a folder that Model::Load wants, put together without store/.
inline store::ModelFiles OpenFolder(const std::string& path) {
  store::ModelFiles files;
  files.path = path;
  auto json = Json::Parse(ReadText(path + "/config.json"), path + "/config.json");
  EXPECT_TRUE(json.has_value());
  auto config = checkpoint::ParseModelConfig(*json, path + "/config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message();
  files.config = *config;
  auto trunk = checkpoint::TensorFiles::Open(path);
  EXPECT_TRUE(trunk.has_value()) << trunk.error().message();
  files.trunk = std::move(*trunk);
  files.facts.prefix = "model.";
  files.facts.head_is_tied = files.trunk.Find("lm_head.weight") == nullptr &&
                             files.trunk.Find("lm_head.weight_packed") == nullptr;
  std::vector<store::StoreLayer> layers;
  for (uint32_t layer = 0; layer < files.config.num_hidden_layers; ++layer) {
    const std::string stem = fmt::format("model.layers.{}.", layer);
    const bool is_sparse =
        files.trunk.Find(stem + "mlp.experts.0.gate_proj.weight") != nullptr ||
        files.trunk.Find(stem + "block_sparse_moe.experts.0.w1.weight") != nullptr;
    files.facts.layer_is_sparse.push_back(is_sparse);
    if (is_sparse) layers.push_back({layer, files.config.num_experts, 0});
  }
  files.experts = std::make_unique<NamedStore>(path, layers, files.config.hidden_size);
  return files;
}

// A loaded model with its cache. Pointers inside stay valid when it is moved.
struct TestModel {
  std::unique_ptr<store::ModelFiles> files;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<PlainBackend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> kv;
};

inline Result<TestModel> LoadTestModel(
    store::ModelFiles files, size_t thread_count = 1,
    const kernels::KernelTable& kernels = *kernels::AllKernels().back(),
    const Model::Options& options = {.row_count_max = 512, .logit_row_max = 512}) {
  TestModel made;
  made.files = std::make_unique<store::ModelFiles>(std::move(files));
  made.pool = std::make_unique<ThreadPool>(thread_count);
  made.backend = std::make_unique<PlainBackend>(made.files->trunk, made.files->config.hidden_size);
  SMOE_TRY_ASSIGN(made.model,
                  Model::Load(*made.files, *made.pool, kernels, *made.backend, options));
  SMOE_TRY_ASSIGN(made.kv, KvCache::Create(made.model->kv_shape(), 1024));
  return made;
}

// Logits of all positions, the prompt cut in chunks.
inline std::vector<float> RunPrompt(TestModel& test, std::span<const uint32_t> ids,
                                    size_t chunk = SIZE_MAX, StepTaps* taps = nullptr) {
  KvSequence kv = test.kv->NewSequence();
  std::vector<float> logits;
  for (size_t first = 0; first < ids.size(); first += std::min(chunk, ids.size() - first)) {
    const SequenceRows rows = {&kv, ids.subspan(first, std::min(chunk, ids.size() - first)),
                               SequenceRows::Logits::kAll};
    const auto result = test.model->Step({&rows, 1}, taps);
    EXPECT_TRUE(result.has_value()) << result.error().message();
    if (!result.has_value()) return {};
    for (const SequenceFailure& failure : result->failures) {
      ADD_FAILURE() << failure.error.message();
    }
    logits.insert(logits.end(), result->logits.begin(), result->logits.end());
  }
  return logits;
}

}  // namespace smoe::model
