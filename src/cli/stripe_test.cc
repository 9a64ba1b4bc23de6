// smoe stripe as a user meets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/console_for_test.h"
#include "convert/files_for_test.h"
#include "io/file.h"

namespace smoe::cli {
namespace {

using convert::TestFolder;
using convert::TinyMoe;
using testing::HasSubstr;

class StripeCommand : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b"}) std::filesystem::create_directory(folder_.Path(name));
    vault_ = folder_.Path("tiny.smoe");
    ASSERT_EQ(RunForTest({"shatter", TinyMoe(), vault_}).code, 0);
  }

  std::string Logits(const std::string& model, const std::string& name) {
    const ProgramOutput output = RunForTest({"logits", model, "--tokens", "1,2,3,400,5,60,7,8",
                                             "--cache-experts", "9", "--out", folder_.Path(name)});
    EXPECT_EQ(output.code, 0) << output.err;
    return io::ReadWholeFile(folder_.Path(name), 1 << 26).value();
  }

  TestFolder folder_;
  std::string vault_;
};

TEST_F(StripeCommand, StripedModelHasTheLogitsOfTheModelToTheBit) {
  const std::string out = folder_.Path("tiny.stripe");
  const ProgramOutput made = RunForTest(
      {"stripe", vault_, out, folder_.Path("a"), folder_.Path("b"), "--weights", "1,2,1"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("no drive is gained by it"));
  EXPECT_THAT(made.err, HasSubstr("tiny.stripe.part2"));
  EXPECT_EQ(Logits(out, "striped"), Logits(vault_, "whole"));
  const ProgramOutput verified = RunForTest({"verify", out});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  const ProgramOutput inspected = RunForTest({"inspect", out});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, HasSubstr("tiny.stripe.part1"));
  EXPECT_EQ(RunForTest({"plan", out, "--memory", "1GiB"}).code, 0);
  EXPECT_EQ(RunForTest({"run", out, "-p", "Once upon", "-n", "3"}).code, 0);
  const ProgramOutput twice = RunForTest({"stripe", out, folder_.Path("x"), folder_.Path("a")});
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("a striped model already"));
}

// The way back: the model itself is whole.
TEST_F(StripeCommand, TheModelStaysByteForByteAndIsAllThatIsNeededWithoutTheStripe) {
  const std::string before = io::ReadWholeFile(vault_, 1 << 26).value();
  const std::string out = folder_.Path("tiny.stripe");
  ASSERT_EQ(RunForTest({"stripe", vault_, out, folder_.Path("a"), "--weights", "0,1"}).code, 0);
  EXPECT_EQ(io::ReadWholeFile(vault_, 1 << 26).value(), before);
  const std::string striped = Logits(out, "striped");
  const ProgramOutput converted = RunForTest({"convert", out, folder_.Path("records")});
  EXPECT_EQ(converted.code, 2);
  EXPECT_THAT(converted.err, HasSubstr("convert the one that it was made of, which is whole: "));
  EXPECT_THAT(converted.err, HasSubstr("tiny.smoe"));
  std::filesystem::remove(out);
  std::filesystem::remove(folder_.Path("a/tiny.stripe.part1"));
  EXPECT_EQ(RunForTest({"verify", vault_}).code, 0);
  EXPECT_EQ(Logits(vault_, "whole"), striped);
}

// 64 experts: the part would get its first one at the 501st.
TEST_F(StripeCommand, WeightsThatLeaveAPartEmptyAreRefusedWithNumbers) {
  const ProgramOutput refused = RunForTest(
      {"stripe", vault_, folder_.Path("e.stripe"), folder_.Path("a"), "--weights", "1000,1"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr(folder_.Path("a") +
                                     ": its weight of 1 in 1001 gives it none of 64 experts"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("a")));
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("e.stripe")));
}

// JSON would hold another name, and the striped model would not be found.
TEST_F(StripeCommand, NamesThatAreNoUtf8AreRefused) {
  const std::string model = folder_.Path("tiny\xff.smoe");
  std::filesystem::copy_file(vault_, model);
  const std::string places[][2] = {{model, folder_.Path("tiny.stripe")},
                                   {vault_, folder_.Path("tiny\xff.stripe")}};
  for (const auto& [from, out] : places) {
    const ProgramOutput refused =
        RunForTest({"stripe", from, out, folder_.Path("a"), "--weights", "1,1"});
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("is no UTF-8"));
    EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("a")));
  }
  const std::string fine = folder_.Path("tiny\xc3\xa4.stripe");
  EXPECT_EQ(RunForTest({"stripe", vault_, fine, folder_.Path("a"), "--weights", "1,1"}).code, 0);
  EXPECT_EQ(RunForTest({"run", fine, "-p", "Once upon", "-n", "3"}).code, 0);
}

TEST_F(StripeCommand, RecordStoreWithoutAShareOfItsOwnRunsFromThePartsAlone) {
  const std::string records = folder_.Path("records");
  ASSERT_EQ(RunForTest({"pack", TinyMoe(), records}).code, 0);
  const std::string out = folder_.Path("r.stripe");
  ASSERT_EQ(RunForTest({"stripe", records, out, folder_.Path("a"), "--weights", "0,1"}).code, 0);
  EXPECT_EQ(Logits(out, "striped"), Logits(records, "whole"));
  std::filesystem::remove(folder_.Path("a/r.stripe.part1"));
  const ProgramOutput run = RunForTest({"run", out, "-p", "Once upon", "-n", "3"});
  EXPECT_NE(run.code, 0);
  EXPECT_THAT(run.err, HasSubstr("r.stripe.part1: not there; mount its drive"));
  EXPECT_NE(RunForTest({"verify", out}).code, 0);
}

TEST_F(StripeCommand, FileOfTheModelIsNotReplacedByTheDescriptorEvenByForce) {
  const std::string records = folder_.Path("records");
  ASSERT_EQ(RunForTest({"pack", TinyMoe(), records}).code, 0);
  for (const auto& entry : std::filesystem::directory_iterator(records)) {
    const std::string file = entry.path().string();
    const ProgramOutput refused =
        RunForTest({"stripe", records, file, folder_.Path("a"), "--weights", "1,1", "--force"});
    EXPECT_EQ(refused.code, 2) << file << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("is being read")) << file;
  }
  EXPECT_EQ(RunForTest({"verify", records}).code, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("a")));
}

TEST_F(StripeCommand, WeightsAreMeasuredUnlessGivenAndRefusedIfTheyAreNone) {
  const std::string out = folder_.Path("m.stripe");
  const ProgramOutput measured = RunForTest({"stripe", vault_, out, folder_.Path("a")});
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.err, HasSubstr(" GB/s, weight 100"));
  for (const char* weights : {"1", "1,", "1,x", "1,2,3", "1,0"}) {
    const ProgramOutput refused = RunForTest(
        {"stripe", vault_, folder_.Path("n.stripe"), folder_.Path("b"), "--weights", weights});
    EXPECT_EQ(refused.code, 2) << weights << refused.err;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("b")));
}

}  // namespace
}  // namespace smoe::cli
