#include "store/records/verify.h"

#include "store/vault/vault_files_for_test.h"

namespace smoe::store::records {
namespace {

using vault::ReadFile;
using vault::ReadJson;
using vault::ReferencePath;
using vault::VerifyReport;

// What opening and verifying say; empty: nothing is wrong.
struct Answer {
  std::string refusal;  // of opening
  VerifyReport report;
  std::string all() const {
    std::string text = refusal;
    for (const std::string& problem : report.problems) text += "\n" + problem;
    return text;
  }
};

Answer Ask(const std::string& path) {
  Answer answer;
  const auto folder = OpenRecordFolder(path);
  if (!folder) {
    answer.refusal = folder.error().message();
    return answer;
  }
  EXPECT_TRUE(VerifyRecords(*folder, {}, &answer.report));
  return answer;
}

TEST(VerifyRecords, FindsNothingInTheReferenceStoresAndReadsEachByteOnce) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  for (const char* name : {"a64x128-store", "a64x128-store-no-input", "b16x32-store",
                           "b16x32-store-part-input", "b16x32-store-sub64-fs512"}) {
    SCOPED_TRACE(name);
    const auto folder = OpenRecordFolder(ReferencePath("nvfp4/" + std::string(name)));
    ASSERT_TRUE(folder) << folder.error().message();
    VerifyReport report;
    ASSERT_TRUE(VerifyRecords(*folder, {}, &report));
    EXPECT_TRUE(report.ok()) << report.problems[0];
    EXPECT_TRUE(report.warnings.empty());
    EXPECT_FALSE(report.has_checksums);
    EXPECT_EQ(report.expert_count, folder->record_count());
    EXPECT_EQ(report.checked_bytes, folder->layer_bytes());
  }
}

// Of "what" in the list: the projection it speaks of, with the mark of a message; empty: none.
std::string ProjectionIn(const std::string& what) {
  for (const Proj proj : kProjs) {
    if (what.find(ProjName(proj)) != std::string::npos) return std::string(ProjName(proj)) + ": ";
  }
  return {};
}

TEST(VerifyRecords, GivesEveryDamagedStoreTheAnswerThatItsListAsksFor) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const std::string folder = ReferencePath("nvfp4/damaged/");
  const Json list = ReadJson(folder + "damaged.json");
  size_t count = 0;
  for (const Json& item : *list.Find("stores")->AsArray()) {
    const std::string name = *item.Find("dir")->AsString();
    const std::string kind = *item.Find("class")->AsString();
    const std::string what = *item.Find("what")->AsString();
    SCOPED_TRACE(name + ": " + what);
    ++count;
    const Answer answer = Ask(folder + name);
    const std::string text = answer.all();
    if (kind == "accept") {
      EXPECT_EQ(text, "");
      EXPECT_EQ(answer.report.warnings.size(), name == "padding_not_zero" ? 1u : 0u);
      continue;
    }
    ASSERT_NE(text, "");
    EXPECT_NE(text.find(name), std::string::npos) << text;
    if (name.starts_with("manifest_") || name.starts_with("layer_")) {
      EXPECT_NE(answer.refusal, "") << "found only after opening";
      continue;
    }
    const std::string record =
        fmt::format("experts_{:05}.xpr: record {} (model layer {}", *item.Find("layer")->AsUint(),
                    *item.Find("expert")->AsUint(), *item.Find("layer")->AsUint());
    EXPECT_NE(text.find(record), std::string::npos) << text;
    EXPECT_EQ(answer.report.problem_count, name == "record_swapped" ? 2u : 1u) << text;
    if (kind == "report") {
      EXPECT_NE(text.find(ProjectionIn(what)), std::string::npos) << text;
    }
  }
  EXPECT_EQ(count, 58u);
}

TEST(IsRecordFolder, TellsStoresFromCheckpointsAndFiles) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  EXPECT_TRUE(IsRecordFolder(ReferencePath("nvfp4/b16x32-store")));
  EXPECT_TRUE(IsRecordFolder(ReferencePath("nvfp4/damaged/manifest_missing")));
  EXPECT_TRUE(IsRecordFolder(ReferencePath("nvfp4/damaged/layer_missing")));
  EXPECT_FALSE(IsRecordFolder(ReferencePath("nvfp4/b16x32-modelopt")));
  EXPECT_FALSE(IsRecordFolder(ReferencePath("vaults/qwen3_moe.smoe")));
  EXPECT_FALSE(IsRecordFolder(ReferencePath("no_such_path")));
}

TEST(Describe, ShowsTheScalarsOfEveryRecord) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto folder = OpenRecordFolder(ReferencePath("nvfp4/b16x32-store-part-input"));
  ASSERT_TRUE(folder);
  const Json json = Describe(*folder, true);
  EXPECT_EQ(*json.Find("manifest")->Find("record_stride")->AsUint(), 4096u);
  EXPECT_EQ(*json.Find("experts")->Find("bytes_each")->AsUint(), 864u);
  const Json::Array& table = *json.Find("table")->AsArray();
  ASSERT_EQ(table.size(), 8u);
  EXPECT_EQ(*table[5].Find("layer")->AsUint(), 1u);
  EXPECT_EQ(*table[5].Find("expert")->AsUint(), 1u);
  EXPECT_GT(*table[5].Find("gate")->Find("scale2")->AsDouble(), 0);
  EXPECT_NE(table[5].Find("gate")->Find("input_scale"), nullptr);
  EXPECT_EQ(table[5].Find("up")->Find("input_scale"), nullptr);
}

}  // namespace
}  // namespace smoe::store::records
