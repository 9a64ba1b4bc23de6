#include "store/stripe/stripe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "base/memory.h"
#include "base/memory_limits.h"
#include "store/model_files.h"
#include "store/read_expert.h"
#include "store/records/record_store.h"
#include "store/stripe/stripe_writer.h"
#include "store/stripe/striped_store.h"
#include "store/vault/vault_files_for_test.h"

namespace smoe::store::stripe {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using vault::ReadFile;
using vault::TempFolder;
using vault::WriteFile;

std::string RecordsPath() { return vault::ReferencePath("nvfp4/a64x128-store"); }

std::unique_ptr<ExpertStore> OpenRecords(const std::string& path, bool direct_io = true) {
  auto folder = records::OpenRecordFolder(path);
  EXPECT_TRUE(folder) << folder.error().message();
  return std::move(*records::OpenRecordStore(std::move(*folder), {.direct_io = direct_io}));
}

std::vector<uint32_t> PartsOf(const Placement& placement, size_t count) {
  std::vector<uint32_t> parts;
  for (size_t i = 0; i < count; ++i) parts.push_back(placement.places[i].part);
  return parts;
}

// The records of the reference over two folders of its own.
class StripeTest : public testing::Test {
 protected:
  void SetUp() override {
    SMOE_SKIP_WITHOUT_REFERENCE();
    fs::create_directory(folder_.File("a"));
    fs::create_directory(folder_.File("b"));
    model_ = folder_.File("model");
    fs::copy(RecordsPath(), model_);
    options_.model = model_;
    options_.out = folder_.File("m.stripe");
    options_.folders = {folder_.File("a"), folder_.File("b")};
    options_.weights = {1, 2, 1};
  }

  Status Write() {
    const auto written = WriteStripe(*OpenRecords(model_), options_);
    if (!written) return Unexpected(written.error());
    return Ok();
  }
  Result<std::unique_ptr<ExpertStore>> Open() {
    SMOE_TRY_ASSIGN(Stripe stripe, ReadStripe(options_.out));
    return OpenStripedStore(std::move(stripe), OpenRecords(model_));
  }
  std::string OpenError(ErrorCode code) {
    const auto opened = Open();
    if (opened) return "opened";
    EXPECT_EQ(opened.error().code(), code) << opened.error().message();
    return opened.error().message();
  }
  std::string PartPath(int index) const {
    return folder_.File(index == 1 ? "a/m.stripe.part1" : "b/m.stripe.part2");
  }

  TempFolder folder_;
  std::string model_;
  WriteStripeOptions options_;
};

TEST_F(StripeTest, ExpertsGoToThePartWhoseTurnItIs) {
  const auto store = OpenRecords(model_);
  // By hand: every part gains its weight, the one with most takes the expert and loses the sum.
  EXPECT_THAT(PartsOf(*PlaceExperts(*store, std::vector<uint32_t>{1, 1}), 4),
              ElementsAre(0, 1, 0, 1));
  const Placement uneven = *PlaceExperts(*store, std::vector<uint32_t>{0, 2, 1});
  EXPECT_THAT(PartsOf(uneven, 6), ElementsAre(1, 2, 1, 1, 2, 1));
  // Records of 14080 bytes in pages, behind a header of one page.
  EXPECT_EQ(uneven.places[0].offset, 4096u);
  EXPECT_EQ(uneven.places[2].offset, 4096u + 16384);
  EXPECT_EQ(uneven.places[1].offset, 4096u);
  EXPECT_EQ(uneven.part_bytes[1] + uneven.part_bytes[2],
            2 * 4096u + store->expert_count() * 16384u);
}

TEST_F(StripeTest, WeightsOutsideTheirLimitsAreRefused) {
  const auto store = OpenRecords(model_);
  for (const std::vector<uint32_t>& weights : std::vector<std::vector<uint32_t>>{
           {1}, {1, 0}, {1, kWeightMax + 1}, std::vector<uint32_t>(kPartsMax + 2, 1)}) {
    const auto placed = PlaceExperts(*store, weights);
    ASSERT_FALSE(placed);
    EXPECT_EQ(placed.error().code(), ErrorCode::kInvalid);
  }
  EXPECT_TRUE(PlaceExperts(*store, std::vector<uint32_t>(kPartsMax + 1, kWeightMax)));
}

TEST_F(StripeTest, WeightsAreInTheProportionOfTheRates) {
  EXPECT_THAT(WeightsOf(std::vector<double>{1e9, 4e9, 3e9, 1}), ElementsAre(25, 100, 75, 1));
}

TEST_F(StripeTest, EveryExpertHasTheBytesOfTheModelDirectAndBuffered) {
  ASSERT_TRUE(Write());
  const auto model = OpenRecords(model_);
  const auto opened = Open();
  ASSERT_TRUE(opened) << opened.error().message();
  const ExpertStore& store = **opened;
  EXPECT_EQ(store.direct_io(), model->direct_io());
  AlignedBuffer expected = *AlignedBuffer::Create(store.slot_bytes(), "test");
  AlignedBuffer found = *AlignedBuffer::Create(store.slot_bytes(), "test");
  std::set<int> fds;
  for (int round = 0; round < 2; ++round) {
    for (const StoreLayer& layer : store.layers()) {
      for (uint32_t e = 0; e < layer.expert_count; ++e) {
        const ExpertId id{layer.layer_index, e};
        ASSERT_TRUE(ReadExpert(*model, id, expected.bytes()));
        const Status read = ReadExpert(store, id, found.bytes());
        ASSERT_TRUE(read) << read.error().message();
        EXPECT_TRUE(std::equal(found.data(), found.data() + 14080, expected.data()));
        fds.insert(store.Locate(id).extents[0].fd);
      }
    }
    (*opened)->FallBackToBuffered();
    EXPECT_FALSE(store.direct_io());
  }
  EXPECT_GE(fds.size(), 5u);  // three files of the model, two parts
  EXPECT_TRUE(IsStripeFile(options_.out));
  EXPECT_FALSE(IsStripeFile(model_ + "/manifest.json"));
}

TEST_F(StripeTest, NothingIsReplacedUnasked) {
  ASSERT_TRUE(Write());
  const std::string before = ReadFile(options_.out);
  const Status again = Write();
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message(), HasSubstr("exists; --force replaces it"));
  // Parts of a run that was killed before its descriptor came.
  fs::remove(options_.out);
  WriteFile(PartPath(1) + ".partial", "leftover");
  EXPECT_FALSE(Write());
  options_.overwrite = true;
  ASSERT_TRUE(Write());
  EXPECT_EQ(ReadFile(options_.out), before);
  EXPECT_TRUE(Open());
  EXPECT_FALSE(fs::exists(PartPath(1) + ".partial"));
}

TEST_F(StripeTest, AStripingThatIsReplacedIsWholeUntilTheNewOneIs) {
  ASSERT_TRUE(Write());
  options_.overwrite = true;
  options_.weights = {1, 1, 1};
  options_.progress = [&](uint64_t, uint64_t) {
    EXPECT_TRUE(Open());
    EXPECT_TRUE(fs::exists(PartPath(1)));
  };
  ASSERT_TRUE(Write());
  const auto opened = Open();
  EXPECT_TRUE(opened) << opened.error().message();
  EXPECT_FALSE(fs::exists(PartPath(1)));
  EXPECT_FALSE(fs::exists(PartPath(2)));
  EXPECT_TRUE(fs::exists(PartPath(1) + "-2"));
  // The other way about, and a part of somebody else in the place of an older one stays.
  options_.progress = nullptr;
  WriteFile(PartPath(2) + "-2", "mine");
  ASSERT_TRUE(Write());
  EXPECT_TRUE(Open());
  EXPECT_TRUE(fs::exists(PartPath(1)));
  EXPECT_FALSE(fs::exists(PartPath(1) + "-2"));
  EXPECT_EQ(ReadFile(PartPath(2) + "-2"), "mine");
}

TEST_F(StripeTest, ACopyThatIsStoppedLeavesNothing) {
  options_.is_stopped = [] { return true; };
  const Status stopped = Write();
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().message(), "interrupted");
  EXPECT_TRUE(fs::is_empty(folder_.File("a")));
  EXPECT_TRUE(fs::is_empty(folder_.File("b")));
  EXPECT_FALSE(fs::exists(options_.out));
  EXPECT_FALSE(fs::exists(options_.out + ".partial"));
}

TEST_F(StripeTest, LeftoverOfAKilledRunIsReplaced) {
  WriteFile(PartPath(2) + ".partial", std::string(1 << 20, 'x'));
  ASSERT_TRUE(Write());
  EXPECT_TRUE(Open());
}

TEST_F(StripeTest, MissingPartIsNamedWithWhatToDo) {
  ASSERT_TRUE(Write());
  fs::remove(PartPath(2));
  const std::string message = OpenError(ErrorCode::kInvalid);
  EXPECT_THAT(message, HasSubstr("part 2 of 2, " + PartPath(2) + ": not there; mount its drive"));
}

TEST_F(StripeTest, TruncatedPartIsRefusedWithBothSizes) {
  ASSERT_TRUE(Write());
  const uint64_t bytes = fs::file_size(PartPath(1));
  fs::resize_file(PartPath(1), bytes - 1);
  EXPECT_THAT(OpenError(ErrorCode::kCorrupt),
              HasSubstr(fmt::format("has {} bytes, expected {}: truncated?", bytes - 1, bytes)));
}

TEST_F(StripeTest, PartOfAnotherStripingOrNoPartIsRefused) {
  options_.weights = {0, 1, 1};
  ASSERT_TRUE(Write());
  const std::string swapped = ReadFile(PartPath(2));
  const std::string own = ReadFile(PartPath(1));
  ASSERT_EQ(own.size(), swapped.size());
  WriteFile(PartPath(1), swapped);
  EXPECT_THAT(OpenError(ErrorCode::kCorrupt), HasSubstr("and part 2, expected"));
  WriteFile(PartPath(1), std::string(own.size(), 'x'));
  EXPECT_THAT(OpenError(ErrorCode::kCorrupt), HasSubstr("does not begin with SMOEPART"));
}

TEST_F(StripeTest, ModelThatIsNoLongerTheSameIsRefused) {
  options_.weights = {0, 1, 1};
  ASSERT_TRUE(Write());
  const std::string layer = model_ + "/experts_00000.xpr";
  std::string content = ReadFile(layer);
  content[5000] = static_cast<char>(content[5000] ^ 1);
  WriteFile(layer, content);
  EXPECT_THAT(OpenError(ErrorCode::kCorrupt), HasSubstr("differs from that of " + model_));
}

TEST_F(StripeTest, FlippedBitOfAPartIsFoundByItsChecksum) {
  ASSERT_TRUE(Write());
  std::string content = ReadFile(PartPath(1));
  content[content.size() - 5000] = static_cast<char>(content[content.size() - 5000] ^ 1);
  WriteFile(PartPath(1), content);
  std::vector<std::string> problems;
  VerifyParts(*ReadStripe(options_.out),
              [&](std::string problem) { problems.push_back(std::move(problem)); });
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0], HasSubstr("part 1 of 2, " + PartPath(1) + ": checksum is"));
}

TEST_F(StripeTest, FolderThatIsNotThereAndDamagedExpertsAreRefusedWithoutATrace) {
  options_.folders[1] = folder_.File("nowhere");
  Status status = Write();
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message(), HasSubstr("nowhere: no such folder"));
  options_.folders[1] = folder_.File("b");
  const std::string layer = model_ + "/experts_00000.xpr";
  std::string content = ReadFile(layer);
  content[0] = 'x';  // the magic of record 0, which goes to part 1
  WriteFile(layer, content);
  status = Write();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(fs::is_empty(folder_.File("a")));
  EXPECT_TRUE(fs::is_empty(folder_.File("b")));
  EXPECT_FALSE(fs::exists(options_.out));
}

TEST_F(StripeTest, ADescriptorOfTheLargestSizeIsReadAndOneByteMoreIsRefused) {
  ASSERT_TRUE(Write());
  std::string text = ReadFile(options_.out);
  text.resize(kDescriptorBytesMax, ' ');
  WriteFile(options_.out, text);
  EXPECT_TRUE(ReadStripe(options_.out));
  WriteFile(options_.out, text + " ");
  const auto refused = ReadStripe(options_.out);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr(options_.out));
}

TEST_F(StripeTest, FilesOfTheModelAreNeverReplaced) {
  options_.overwrite = true;
  const std::string manifest = model_ + "/manifest.json";
  const std::string before = ReadFile(manifest);
  options_.inputs = {manifest};
  options_.out = manifest;
  Status status = Write();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(status.error().message(), HasSubstr("which is being read"));
  options_.out = folder_.File("m.stripe");
  options_.folders[0] = model_;
  fs::rename(manifest, model_ + "/m.stripe.part1");  // a part's own name is no exception
  options_.inputs = {model_ + "/m.stripe.part1"};
  EXPECT_FALSE(CheckStripePlaces(options_));
  EXPECT_EQ(ReadFile(model_ + "/m.stripe.part1"), before);
}

TEST_F(StripeTest, DescriptorThatCannotBeWrittenLeavesTheOlderStripingWhole) {
  ASSERT_TRUE(Write());
  options_.overwrite = true;
  options_.weights = {1, 1, 1};
  fs::create_directory(options_.out + ".partial");  // in the way of the new descriptor
  EXPECT_FALSE(Write());
  const auto opened = Open();
  EXPECT_TRUE(opened) << opened.error().message();
}

TEST_F(StripeTest, PartsThatNoDescriptorCameToNameAreRemoved) {
  // Too late for what is looked at before: only the last of the renames fails.
  options_.progress = [&](uint64_t, uint64_t) { fs::create_directories(options_.out + "/in/way"); };
  EXPECT_FALSE(Write());
  EXPECT_TRUE(fs::is_empty(folder_.File("a")));
  EXPECT_TRUE(fs::is_empty(folder_.File("b")));
  EXPECT_FALSE(fs::exists(options_.out + ".partial"));
  fs::remove_all(options_.out);
  options_.progress = nullptr;
  ASSERT_TRUE(Write());
  EXPECT_TRUE(Open());
}

TEST_F(StripeTest, RelativePathsCountFromTheDescriptorAndNotFromALinkToIt) {
  ASSERT_TRUE(Write());
  std::string text = ReadFile(options_.out);
  const std::string folder = fs::canonical(fs::path(options_.out).parent_path()).string() + "/";
  for (size_t at; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
  WriteFile(options_.out, text);
  fs::create_directory(folder_.File("links"));
  const std::string link = folder_.File("links/m.stripe");
  fs::create_symlink("../m.stripe", link);
  const auto stripe = ReadStripe(link);
  ASSERT_TRUE(stripe) << stripe.error().message();
  EXPECT_TRUE(fs::equivalent(stripe->model, model_));
  EXPECT_TRUE(fs::equivalent(stripe->parts[1].path, PartPath(2)));
}

// A real drive without room: 64 KiB of memory.
TEST_F(StripeTest, DriveWithoutSpaceIsNamedWithBothSizesAndLeftAsItWas) {
  const std::string small = folder_.File("a");
  if (::mount("smoe", small.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << small << ": no drive can be mounted here: " << std::strerror(errno);
  }
  const Status status = Write();
  const Result<double> rate = MeasureFolder(small);
  const bool is_empty = fs::is_empty(small);
  ASSERT_EQ(::umount(small.c_str()), 0);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kExhausted);
  // 2 of 4 experts of 16 KiB each, behind a page.
  const auto placed = PlaceExperts(*OpenRecords(model_), options_.weights);
  EXPECT_THAT(status.error().message(),
              HasSubstr(fmt::format("{}: 64.0 KiB free, expected at least {} for its parts", small,
                                    SizeText(placed->part_bytes[1]))));
  ASSERT_FALSE(rate);
  EXPECT_EQ(rate.error().code(), ErrorCode::kExhausted);
  EXPECT_THAT(rate.error().message(), HasSubstr("give --weights"));
  EXPECT_TRUE(is_empty);
  EXPECT_TRUE(fs::is_empty(folder_.File("b")));
  EXPECT_FALSE(fs::exists(options_.out));
}

TEST_F(StripeTest, HostileDescriptorsAreRefusedByKey) {
  ASSERT_TRUE(Write());
  const std::string good = ReadFile(options_.out);
  const auto refuse = [&](const std::string& from, const std::string& to, const char* message) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto parsed = ParseStripe(text, "m.stripe");
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(parsed.error().message(), HasSubstr(message));
  };
  const std::string path = "\"" + PartPath(1) + "\"";
  refuse("\"smoe_stripe\": 1", "\"smoe_stripe\": 2", "smoe_stripe is 2, expected 1 to 1");
  refuse(path, "\"\"", "part 1: path has 0 bytes");
  refuse(path, "\"a\\u0000b\"", "without a NUL");
  refuse(path, "\"" + PartPath(2) + "\"", "is named twice");
  refuse("\"weight\": 2", "\"weight\": 0", "weight is 0, expected 1 to 1000");
  refuse("\"weight\": 2", "\"weight\": 3", "its weights, sizes and checksums give");
  refuse("\"checksum\": \"", "\"checksum\": \"zz", "expected 16 hexadecimal digits");
  refuse("\"parts\"", "\"others\"", "parts has 0 entries");
  refuse("\"experts\": ", "\"experts\": -", "experts is -");
}

}  // namespace
}  // namespace smoe::store::stripe
