#include "store/records/manifest.h"

#include "store/vault/vault_files_for_test.h"

namespace smoe::store::records {
namespace {

using vault::ReadFile;
using vault::ReferencePath;

ExpertIndex SmallIndex() {
  ExpertIndex index;
  index.num_moe_layers = 2;
  index.num_experts = 3;
  index.inter = 16;
  index.hidden = 32;
  index.moe_layer_to_model_layer = {1, 3};
  EXPECT_TRUE(DeriveSizes(&index));
  return index;
}

TEST(Manifest, IsReadAndWrittenByteForByteAsOthersWriteIt) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  for (const char* name : {"a64x128-store", "b16x32-store", "b16x32-store-sub64-fs512"}) {
    SCOPED_TRACE(name);
    const std::string text =
        ReadFile(ReferencePath("nvfp4/" + std::string(name) + "/manifest.json"));
    const auto index = ParseManifest(text, name);
    ASSERT_TRUE(index) << index.error().message();
    EXPECT_EQ(ManifestText(*index), text);
    EXPECT_FALSE(index->says_orientation);
  }
}

TEST(Manifest, KeepsOurKeysBehindTheKnownOnes) {
  ExpertIndex index = SmallIndex();
  const std::string known = ManifestText(index);
  index.says_orientation = true;
  index.record_checksums = {1, 2, 3, 4, 0xFEDCBA9876543210u, UINT64_MAX};
  index.source = Json().Set("path", "a checkpoint");
  index.files = {{"trunk", "trunk.safetensors", 1234, 5}, {"config.json", "config.json", 6, 7}};
  const std::string text = ManifestText(index);
  // All but the last line and the end of the one before it.
  EXPECT_EQ(text.substr(0, known.size() - 2), known.substr(0, known.size() - 2));
  const auto read = ParseManifest(text, "m");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(read->says_orientation);
  EXPECT_EQ(read->record_checksums, index.record_checksums);
  EXPECT_EQ(*read->source.Find("path")->AsString(), "a checkpoint");
  ASSERT_NE(read->FindFile("trunk"), nullptr);
  EXPECT_EQ(read->FindFile("trunk")->name, "trunk.safetensors");
  EXPECT_EQ(read->FindFile("trunk")->bytes, 1234u);
  EXPECT_EQ(read->FindFile("trunk")->checksum, 5u);
  EXPECT_EQ(read->FindFile("tokenizer.json"), nullptr);
  EXPECT_EQ(ManifestText(*read), text);
}

TEST(Manifest, NumbersFilesWithFiveDigitsAndMore) {
  EXPECT_EQ(ExpertIndex::FileName(1), "experts_00001.xpr");
  EXPECT_EQ(ExpertIndex::FileName(123456), "experts_123456.xpr");
}

TEST(Manifest, RefusesWhatContradictsItselfByNameOfTheKey) {
  struct Case {
    const char* key;
    Json value;
    const char* message;
  };
  Json short_sums{Json::Array()};
  short_sums.Append(Json(Json::Array()));
  const Case cases[] = {
      {"version", 2, "m: version is 2, expected 1"},
      {"version", nullptr, "m: version missing"},
      {"num_moe_layers", 0, "m: num_moe_layers is 0, expected a whole number from 1 to 4096"},
      {"num_moe_layers", 3, "m: moe_layer_to_model_layer has 2 entries, expected 3"},
      {"num_experts", 1e18, "m: num_experts is"},
      {"num_experts", -1, "m: num_experts is -1"},
      {"hidden", 32.5, "m: hidden is 32.5"},
      {"hidden", "32", "m: hidden is \"32\""},
      {"hidden", 4294967328.0, "m: hidden is"},
      {"inter", 17, "m: inter is 17, expected a multiple of group_size 16"},
      {"group_size", 0, "m: group_size is 0"},
      {"group_size", 32, "m: inter is 16, expected a multiple of group_size 32"},
      {"sub_align", 96, "m: sub_align is 96, expected a power of two"},
      {"fs_block_size", 0, "m: fs_block_size is 0"},
      {"fs_block_size", 1000, "m: fs_block_size is 1000, expected a power of two"},
      {"record_stride", 8192, "m: record_stride is 8192, expected 4096"},
      {"record_raw_bytes", 1536, "m: record_raw_bytes is 1536, expected 1792"},
      {"file_template", "x_{}.xpr", "m: file_template is \"x_{}.xpr\""},
      {"moe_layer_to_model_layer", 1, "m: moe_layer_to_model_layer is 1, expected an array"},
      {"record_checksums", short_sums, "m: checksum missing"},
      {"files", 1, "m: files is 1, expected an object"},
      {"files",
       Json().Set("trunk",
                  Json().Set("name", "../x").Set("bytes", 1).Set("checksum", "0000000000000000")),
       "m: files.trunk is"},
  };
  for (const Case& bad : cases) {
    Json json = *Json::Parse(ManifestText(SmallIndex()), "m");
    json.Set(bad.key, bad.value);
    const auto index = ParseManifest(json.Dump(), "m");
    ASSERT_FALSE(index) << bad.message;
    EXPECT_EQ(index.error().code(), ErrorCode::kCorrupt) << bad.message;
    EXPECT_NE(index.error().message().find(bad.message), std::string::npos)
        << index.error().message();
  }
}

TEST(Manifest, RefusesChecksumsThatAreNotOnePerRecord) {
  ExpertIndex index = SmallIndex();
  index.record_checksums = {1, 2, 3, 4, 5, 6};
  Json json = *Json::Parse(ManifestText(index), "m");
  Json layers = *json.Find("record_checksums");
  layers.Append(Json(Json::Array()));
  json.Set("record_checksums", layers);
  EXPECT_FALSE(ParseManifest(json.Dump(), "m"));
  json.Set("record_checksums",
           Json(Json::Array{Json(Json::Array{"0", "0", "0"}), Json(Json::Array{"0", "0", "0"})}));
  EXPECT_FALSE(ParseManifest(json.Dump(), "m"));
}

TEST(Manifest, BoundsTheNumberOfRecords) {
  Json json = *Json::Parse(ManifestText(SmallIndex()), "m");
  json.Set("num_moe_layers", 4096).Set("num_experts", 65536);
  const auto index = ParseManifest(json.Dump(), "m");
  ASSERT_FALSE(index);
  EXPECT_NE(index.error().message().find("more than 1048576 records"), std::string::npos);
}

TEST(Manifest, AnotherOrientationIsNotReadAsTransposed) {
  Json json = *Json::Parse(ManifestText(SmallIndex()), "m");
  json.Set("orientation", "row-major");
  const auto index = ParseManifest(json.Dump(), "m");
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace smoe::store::records
