#include "store/model_fingerprint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "io/file.h"

namespace smoe::store {
namespace {

namespace fs = std::filesystem;

const std::string kModel = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";

uint64_t FingerprintOf(const std::string& path) {
  auto files = OpenModelFiles(path, {});
  EXPECT_TRUE(files) << files.error().message();
  const auto fingerprint = ModelFingerprint(*files);
  EXPECT_TRUE(fingerprint) << fingerprint.error().message();
  return *fingerprint;
}

TEST(ModelFingerprint, IsTheModelsAndNotItsPlaces) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("smoe_print_{}", ::getpid());
  fs::create_directories(folder);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    fs::copy_file(fs::path(kModel) / name, folder / name, fs::copy_options::overwrite_existing);
  }
  const uint64_t own = FingerprintOf(kModel);
  EXPECT_EQ(FingerprintOf(folder.string()), own);

  // The first byte of each of a few tensors, of the trunk and of experts that are sampled.
  const auto files = OpenModelFiles(kModel, {});
  ASSERT_TRUE(files);
  for (const char* name : {"model.embed_tokens.weight", "model.layers.2.self_attn.q_proj.weight",
                           "model.layers.3.mlp.experts.15.down_proj.weight"}) {
    const checkpoint::TensorInfo* const tensor = files->trunk.Find(name);
    ASSERT_NE(tensor, nullptr) << name;
    const auto file = io::File::OpenReadWrite((folder / "model.safetensors").string());
    ASSERT_TRUE(file);
    std::byte byte;
    ASSERT_TRUE(file->ReadAt(tensor->offset, {&byte, 1}));
    byte ^= std::byte{1};
    ASSERT_TRUE(file->WriteAt(tensor->offset, {&byte, 1}));
    EXPECT_NE(FingerprintOf(folder.string()), own) << name;
    byte ^= std::byte{1};
    ASSERT_TRUE(file->WriteAt(tensor->offset, {&byte, 1}));
  }
  EXPECT_EQ(FingerprintOf(folder.string()), own);
  fs::remove_all(folder);
}

TEST(ModelFingerprint, AConfigThatComputesOtherwiseIsAnotherModel) {
  auto files = OpenModelFiles(kModel, {});
  ASSERT_TRUE(files);
  const uint64_t own = *ModelFingerprint(*files);
  const checkpoint::ModelConfig config = files->config;
  files->config.rope.theta *= 2;
  EXPECT_NE(*ModelFingerprint(*files), own);
  files->config = config;
  files->config.num_experts_per_tok -= 1;
  EXPECT_NE(*ModelFingerprint(*files), own);
  files->config = config;
  files->config.max_position_embeddings *= 2;  // changes no number of any token
  EXPECT_EQ(*ModelFingerprint(*files), own);
}

}  // namespace
}  // namespace smoe::store
