#include "store/record_model.h"

#include "store/records/manifest.h"
#include "store/vault/vault_files_for_test.h"
#include "store/verify_model.h"

namespace smoe::store {
namespace {

using records::ExpertIndex;
using vault::ReadFile;
using vault::ReferencePath;
using vault::TempFolder;
using vault::WriteFile;

std::string StorePath(const std::string& name) { return ReferencePath("nvfp4/" + name); }

// A copy of the small store that names its trunk and config: one folder is the whole model.
class WholeStore {
 public:
  WholeStore() {
    auto index = records::ParseManifest(ReadFile(StorePath("b16x32-store/manifest.json")), "m");
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const std::string name = ExpertIndex::FileName(layer);
      WriteFile(folder_.File(name), ReadFile(StorePath("b16x32-store/" + name)));
    }
    index->says_orientation = true;
    AddFile("trunk", "trunk.safetensors", "model.safetensors", &*index);
    AddFile("config.json", "config.json", "config.json", &*index);
    WriteFile(File("manifest.json"), records::ManifestText(*index));
  }
  std::string path() const { return folder_.File(""); }
  std::string File(const std::string& name) const { return folder_.File(name); }

 private:
  void AddFile(const std::string& part, const std::string& name, const std::string& from,
               ExpertIndex* index) {
    const std::string content = ReadFile(StorePath("b16x32-modelopt/" + from));
    WriteFile(File(name), content);
    index->files.push_back({part, name, content.size(), Checksum(AsBytes(content))});
  }
  TempFolder folder_;
};

TEST(OpenRecordModel, OpensTheStoreOfOthersWithATrunkByOption) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  for (const char* name : {"a64x128", "b16x32"}) {
    SCOPED_TRACE(name);
    const std::string store = StorePath(std::string(name) + "-store");
    const auto files = OpenModelFiles(store, {.trunk = StorePath(std::string(name) + "-modelopt")});
    ASSERT_TRUE(files) << files.error().message();
    EXPECT_STREQ(files->experts->format_name(), "nvfp4 group 16");
    EXPECT_EQ(files->config.hidden_size, files->experts->hidden_size());
    EXPECT_EQ(checkpoint::LayerKindsText(files->facts.layer_is_sparse),
              std::string(name) == "b16x32" ? "S S" : "D S S S");
  }
}

TEST(OpenRecordModel, SaysWhatIsMissingAndWhichOptionNamesIt) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto no_trunk = OpenModelFiles(StorePath("b16x32-store"), {});
  ASSERT_FALSE(no_trunk);
  EXPECT_EQ(no_trunk.error().code(), ErrorCode::kInvalid);
  EXPECT_NE(no_trunk.error().message().find("--trunk"), std::string::npos);
  const auto no_config = OpenModelFiles(StorePath("b16x32-store"),
                                        {.trunk = StorePath("b16x32-modelopt/model.safetensors")});
  ASSERT_FALSE(no_config);
  EXPECT_NE(no_config.error().message().find("--config"), std::string::npos);
}

TEST(OpenRecordModel, RefusesTheTrunkOfAnotherModel) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto files =
      OpenModelFiles(StorePath("b16x32-store"), {.trunk = StorePath("a64x128-modelopt")});
  ASSERT_FALSE(files);
  EXPECT_NE(files.error().message().find("another model?"), std::string::npos)
      << files.error().message();
}

TEST(OpenRecordModel, RefusesAQuantisedTrunkOfAnotherShapeByTheNameOfATensor) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  for (const char* trunk : {"mixed-modelopt", "mixed-compressed-tensors"}) {
    const auto files = OpenModelFiles(
        StorePath("b16x32-store"),
        {.trunk = StorePath(trunk) + "/model.safetensors", .config = StorePath("b16x32-modelopt")});
    ASSERT_FALSE(files);
    EXPECT_EQ(files.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(files.error().message().find("shape"), std::string::npos) << files.error().message();
  }
}

TEST(OpenRecordModel, FindsTheFilesThatTheManifestNames) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const WholeStore store;
  const auto files = OpenModelFiles(store.path(), {});
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->config.num_experts, 4u);
  const auto report = VerifyModel(store.path(), {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(report->ok()) << report->problems[0];
  EXPECT_GT(report->tensor_count, 0u);
  // Each byte counts once, the trunk's too, though its values are looked at after its checksum.
  uint64_t store_bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(store.path())) {
    if (entry.path().filename() != "manifest.json") store_bytes += entry.file_size();
  }
  EXPECT_EQ(report->checked_bytes, store_bytes);
}

TEST(OpenRecordModel, RefusesAFileThatIsNotTheOneOfTheManifest) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const WholeStore store;
  std::string config = ReadFile(store.File("config.json"));
  config.back() = ' ';
  WriteFile(store.File("config.json"), config);
  const auto files = OpenModelFiles(store.path(), {});
  ASSERT_FALSE(files);
  EXPECT_NE(files.error().message().find("config.json: checksum is"), std::string::npos);
  const auto report = VerifyModel(store.path(), {});
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->ok());
  std::filesystem::remove(store.File("trunk.safetensors"));
  const auto without = VerifyModel(store.path(), {});
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message().find("the manifest names it as trunk"), std::string::npos);
}

TEST(VerifyModel, ChecksTheStoreOfOthersAloneAndSaysSo) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto alone = VerifyModel(StorePath("b16x32-store"), {});
  ASSERT_TRUE(alone) << alone.error().message();
  EXPECT_TRUE(alone->ok());
  ASSERT_EQ(alone->warnings.size(), 1u);
  EXPECT_NE(alone->warnings[0].find("--trunk"), std::string::npos);
  VerifyModelOptions options;
  options.files.trunk = StorePath("b16x32-modelopt");
  const auto both = VerifyModel(StorePath("b16x32-store"), options);
  ASSERT_TRUE(both) << both.error().message();
  EXPECT_TRUE(both->ok()) << both->problems[0];
  EXPECT_GT(both->tensor_count, 0u);
}

}  // namespace
}  // namespace smoe::store
