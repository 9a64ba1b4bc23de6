// smoe bench --drive, on a file of the smallest size that it takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/json.h"
#include "cli/console_for_test.h"
#include "convert/files_for_test.h"

namespace smoe::cli {
namespace {

using testing::HasSubstr;

TEST(BenchDrive, RefusesNoFileATinyOneAndNoRounds) {
  const convert::TestFolder folder;
  const std::string path = folder.Path("tiny");
  std::ofstream(path) << "tiny";
  EXPECT_THAT(RunForTest({"bench", "--drive"}).err, HasSubstr("--drive: no file named"));
  EXPECT_THAT(RunForTest({"bench", "--drive", path}).err, HasSubstr("4 bytes, at least 32.0 MiB"));
  EXPECT_THAT(RunForTest({"bench", "--drive", folder.Path(""), "--rounds", "0"}).err,
              HasSubstr("--rounds: 0, expected at least 1"));
  EXPECT_THAT(RunForTest({"bench", "--drive", path + ".absent"}).err, HasSubstr(".absent"));
}

// Figures are the drive's; that each line has one, or the reason why not, is ours.
TEST(BenchDrive, EveryLineHasAFigureOrAReason) {
  const convert::TestFolder folder;
  std::ofstream(folder.Path("small")) << "small";
  std::ofstream(folder.Path("large")) << std::string(size_t{32} << 20, 'x');
  const ProgramOutput output =
      RunForTest({"bench", "--drive", folder.Path(""), "--rounds", "1", "--json"});
  ASSERT_EQ(output.code, 0) << output.err;
  const Json json = std::move(*Json::Parse(output.out, "output"));
  EXPECT_THAT(*json.Find("file")->AsString(), HasSubstr("/large"));
  const Json::Array& cells = *json.Find("cells")->AsArray();
  // Four sizes; two queues at three depths, registered, two buffered; pieces where they are
  // smaller.
  EXPECT_EQ(cells.size(), 4 * (2 * 3 + 1 + 2) + 3u);
  for (const Json& cell : cells) {
    if (cell.Find("refused") != nullptr) continue;
    EXPECT_GT(cell.Find("bytes_per_second")->Find("median")->AsDouble().value_or(0), 0);
  }
}

}  // namespace
}  // namespace smoe::cli
