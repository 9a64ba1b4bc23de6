// smoe pack as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "cli/console_for_test.h"
#include "convert/files_for_test.h"

namespace smoe::cli {
namespace {

using convert::Reference;
using convert::TestFolder;
using convert::TinyMoe;
using testing::HasSubstr;
using testing::Not;

TEST(Pack, OneFolderIsTheWholeModel) {
  const TestFolder folder;
  const ProgramOutput packed = RunForTest({"pack", TinyMoe(), folder.Path("records")});
  EXPECT_EQ(packed.code, 0) << packed.err;
  EXPECT_THAT(packed.err, HasSubstr("64 in 4 layers, NVFP4, quantiser mse"));
  EXPECT_THAT(packed.err, HasSubstr("SNR"));
  EXPECT_EQ(packed.out, "");
  EXPECT_EQ(RunForTest({"verify", folder.Path("records")}).code, 0);
  const ProgramOutput answer =
      RunForTest({"run", folder.Path("records"), "-p", "Once upon", "-n", "3"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  const ProgramOutput again = RunForTest({"pack", TinyMoe(), folder.Path("records")});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("manifest.json: exists; --force replaces it"));
  EXPECT_EQ(RunForTest({"pack", TinyMoe(), folder.Path("records"), "--force"}).code, 0);
}

TEST(Pack, ADryRunSaysWhatItWouldWriteAsJsonToo) {
  const TestFolder folder;
  const ProgramOutput output = RunForTest({"pack", TinyMoe(), folder.Path("records"), "--dry-run",
                                           "--json", "--layers", "0,2-3", "--quantiser", "amax"});
  EXPECT_EQ(output.code, 0) << output.err;
  const auto json = Json::Parse(output.out, "output");
  ASSERT_TRUE(json) << output.out;
  EXPECT_EQ(json->Find("layers")->AsUint(), 3u);
  EXPECT_EQ(*json->Find("quantiser")->AsString(), "amax");
  // 3 layers of 16 records of header 256 and 3 x 256 x 128 x 9 / 16 bytes, in pages.
  EXPECT_EQ(json->Find("record_stride")->AsUint(), 57344u);
  EXPECT_FALSE(std::filesystem::exists(folder.Path("records")));
}

TEST(Pack, MovesWhatIsQuantisedAlready) {
  const std::string source = Reference("nvfp4/mixed-modelopt");
  if (!std::filesystem::exists(source)) GTEST_SKIP() << "no reference data at " << source;
  const TestFolder folder;
  const ProgramOutput output = RunForTest({"pack", source, folder.Path("records")});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.err, HasSubstr("NVFP4, moved as they are"));
  EXPECT_THAT(output.err, Not(HasSubstr("RMSE")));
  const ProgramOutput answer =
      RunForTest({"run", folder.Path("records"), "--tokens", "1,2,3", "-n", "2", "--raw-ids"});
  EXPECT_EQ(answer.code, 0) << answer.err;
}

TEST(Pack, WrongRequestsAreNamed) {
  const TestFolder folder;
  EXPECT_THAT(RunForTest({"pack", "/no/such", folder.Path("x")}).err,
              HasSubstr("no such folder, expected a Hugging Face folder"));
  EXPECT_THAT(RunForTest({"pack", TinyMoe(), folder.Path("x"), "--layers", "1-"}).err,
              HasSubstr("--layers 1-: expected numbers of layers and ranges"));
  EXPECT_THAT(RunForTest({"pack", TinyMoe(), TinyMoe(), "--force"}).err,
              HasSubstr("is the checkpoint's own folder"));
}

}  // namespace
}  // namespace smoe::cli
