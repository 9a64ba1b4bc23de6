#include "io/read_setting.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "io/file.h"
#include "io/read_choices.h"
#include "io/read_probe.h"

namespace smoe::io {
namespace {

namespace fs = std::filesystem;

ReadSample Sample(double gb_per_second, double cpu_seconds_per_gb, uint32_t depth) {
  ReadSample sample;
  sample.setting.depth = depth;
  sample.rate.bytes = 1'000'000'000;
  sample.rate.seconds = 1 / gb_per_second;
  sample.rate.cpu_seconds = cpu_seconds_per_gb;
  return sample;
}

TEST(ChooseReadSetting, TakesTheFastest) {
  const ReadSample samples[] = {Sample(1.0, 0.01, 1), Sample(1.5, 0.5, 2), Sample(1.2, 0.0, 3)};
  EXPECT_EQ(ChooseReadSetting(samples), 1u);
}

TEST(ChooseReadSetting, AmongThoseThatAreNearTakesTheCheapest) {
  const ReadSample samples[] = {Sample(1.58, 0.020, 1), Sample(1.62, 0.016, 2),
                                Sample(1.56, 0.006, 3), Sample(1.40, 0.001, 4)};
  EXPECT_EQ(ChooseReadSetting(samples), 2u);
}

TEST(ChooseReadSetting, WithoutAnyBytesTakesTheFirst) {
  const ReadSample samples[2] = {};
  EXPECT_EQ(ChooseReadSetting(samples), 0u);
}

TEST(ReadSetting, RoomInTheQueueMakesItNoShallowerAndHasNoMoreThreadsRead) {
  const ReadSetting whole{.backend = ReadBackend::kThreads, .depth = 4, .thread_count = 8};
  EXPECT_EQ(whole.options(64).depth, 64u);
  EXPECT_EQ(whole.options(64).thread_count, 4u);
  EXPECT_EQ(whole.options(2).depth, 4u);
  const ReadSetting pieces{
      .backend = ReadBackend::kThreads, .depth = 4, .thread_count = 8, .piece_bytes = 4096};
  EXPECT_EQ(pieces.options(64).thread_count, 8u);
  EXPECT_EQ(pieces.options(64).piece_bytes, 4096u);
}

TEST(CandidateReadSettings, KeepToWhatIsAskedAndPossible) {
  for (const ReadBackend backend :
       {ReadBackend::kAuto, ReadBackend::kUring, ReadBackend::kThreads}) {
    for (const bool may_be_direct : {false, true}) {
      const auto settings = CandidateReadSettings(backend, may_be_direct);
      ASSERT_FALSE(settings.empty());
      std::set<std::string> texts;
      for (const ReadSetting& one : settings) {
        EXPECT_TRUE(may_be_direct || !one.direct);
        EXPECT_TRUE(backend == ReadBackend::kAuto || one.backend == backend);
        EXPECT_TRUE(CheckReadOptions(one.options()).has_value());
        texts.insert(one.Text());
      }
      EXPECT_EQ(texts.size(), settings.size()) << "two settings read alike";
      EXPECT_EQ(settings.front().direct, may_be_direct);
    }
  }
}

class ReadFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "smoe_probe_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/store";
    std::ofstream(path_) << std::string(kReads * kReadBytes, 'x');
    // Pages that are not on the drive yet would stay in the page cache, whatever a probe asks.
    ASSERT_TRUE(File::OpenReadWrite(path_)->Sync().has_value());
    choices_ = folder_ + "/cache/smoe/reads.json";
  }
  void TearDown() override { fs::remove_all(folder_); }

  static constexpr uint64_t kReads = 16;
  static constexpr uint64_t kReadBytes = 64 << 10;

  static std::vector<ReadRange> Ranges(const File& file) {
    std::vector<ReadRange> ranges;
    for (uint64_t i = 0; i < kReads; ++i) ranges.push_back({file.fd(), i * kReadBytes, kReadBytes});
    return ranges;
  }
  void Write(const std::string& text) {
    fs::create_directories(fs::path(choices_).parent_path());
    std::ofstream(choices_, std::ios::trunc) << text;
  }

  std::string folder_;
  std::string path_;
  std::string choices_;
};

TEST_F(ReadFiles, ProbeTriesWhatItCanAndChoosesOneOfThem) {
  const File plain = std::move(*File::OpenRead(path_));
  ProbeRanges ranges{.direct = {}, .buffered = Ranges(plain)};
  const Result<File> direct = File::OpenDirect(path_);
  if (direct) ranges.direct = Ranges(*direct);
  const auto settings = CandidateReadSettings(ReadBackend::kAuto, direct.has_value());
  const Result<ReadProbe> probe = ProbeReads(ranges, settings, 0.02);
  if (!probe && probe.error().code() == ErrorCode::kUnsupported) {
    GTEST_SKIP() << path_ << ": " << probe.error().message();  // a file system in memory
  }
  ASSERT_TRUE(probe.has_value()) << probe.error().message();
  ASSERT_LT(probe->best, probe->samples.size());
  EXPECT_EQ(probe->best, ChooseReadSetting(probe->samples));
  for (const ReadSample& one : probe->samples) EXPECT_EQ(one.rate.bytes % kReadBytes, 0u);
  EXPECT_NE(probe->Text().find(probe->chosen().setting.Text()), std::string::npos);
}

TEST_F(ReadFiles, ProbeWithoutDescriptorsOfAKindLeavesItsSettingsOut) {
  const File plain = std::move(*File::OpenRead(path_));
  const auto settings = CandidateReadSettings(ReadBackend::kThreads, true);
  if (const auto probe = ProbeReads({{}, Ranges(plain)}, settings, 0.01)) {
    for (const ReadSample& one : probe->samples) EXPECT_FALSE(one.setting.direct);
  } else {
    EXPECT_EQ(probe.error().code(), ErrorCode::kUnsupported) << probe.error().message();
  }
  const auto nothing = ProbeReads({}, settings, 0.01);
  ASSERT_FALSE(nothing.has_value());
  EXPECT_EQ(nothing.error().code(), ErrorCode::kUnsupported);
}

TEST_F(ReadFiles, ProbeOfAFileThatEndsSaysWhere) {
  const File plain = std::move(*File::OpenRead(path_));
  fs::resize_file(path_, 0);
  const auto probe =
      ProbeReads({{}, Ranges(plain)}, CandidateReadSettings(ReadBackend::kThreads, false), 0.01);
  ASSERT_FALSE(probe.has_value());
  // Two reads are in flight: either may come first.
  const std::string& message = probe.error().message();
  EXPECT_NE(message.find("offset "), std::string::npos) << message;
  EXPECT_NE(message.find(": No data"), std::string::npos) << message;
}

TEST_F(ReadFiles, ChoiceIsFoundAgainUnderItsKeyOnly) {
  const ReadSample chosen{.setting = {.backend = ReadBackend::kThreads,
                                      .depth = 32,
                                      .thread_count = 5,
                                      .piece_bytes = 1 << 19,
                                      .direct = false},
                          .rate = {.bytes = 1000, .seconds = 0.5, .cpu_seconds = 0.25}};
  EXPECT_FALSE(FindReadChoice(choices_, "here").has_value());
  ASSERT_TRUE(KeepReadChoice(choices_, "here", Sample(1, 1, 9)).has_value());
  ASSERT_TRUE(KeepReadChoice(choices_, "there", Sample(1, 1, 8)).has_value());
  ASSERT_TRUE(KeepReadChoice(choices_, "here", chosen).has_value());
  const auto found = FindReadChoice(choices_, "here");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->setting, chosen.setting);
  EXPECT_EQ(found->rate.bytes, 1000u);
  EXPECT_EQ(found->rate.seconds, 0.5);
  EXPECT_EQ(found->rate.cpu_seconds, 0.25);
  EXPECT_EQ(FindReadChoice(choices_, "there")->setting.depth, 8u);
  EXPECT_FALSE(FindReadChoice(choices_, "elsewhere").has_value());
}

TEST_F(ReadFiles, DamagedChoicesAreAsGoodAsNoneAndReplaced) {
  ASSERT_TRUE(KeepReadChoice(choices_, "here", Sample(1, 1, 9)).has_value());
  const std::string good = *ReadWholeFile(choices_, 1 << 20);
  ASSERT_NE(good.find("\"depth\": 9"), std::string::npos) << good;
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"version\": 1}"),
        good.substr(0, good.size() / 2), with("\"version\": 1", "\"version\": 2"),
        with("\"depth\": 9", "\"depth\": 0"), with("\"depth\": 9", "\"depth\": 99999999999"),
        with("\"depth\": 9", "\"depth\": \"9\""), with("\"uring\"", "\"mmap\""),
        with("\"piece_bytes\": 0", "\"piece_bytes\": 7"),
        with("\"direct\": true", "\"direct\": 1")}) {
    Write(text);
    EXPECT_FALSE(FindReadChoice(choices_, "here").has_value()) << text;
    ASSERT_TRUE(KeepReadChoice(choices_, "here", Sample(1, 1, 7)).has_value());
    EXPECT_EQ(FindReadChoice(choices_, "here")->setting.depth, 7u) << text;
  }
}

TEST_F(ReadFiles, OldestChoicesGoBeyondTheLimit) {
  for (size_t i = 0; i <= kReadChoicesMax; ++i) {
    ASSERT_TRUE(KeepReadChoice(choices_, std::to_string(i), Sample(1, 1, 7)).has_value());
  }
  EXPECT_FALSE(FindReadChoice(choices_, "0").has_value());
  EXPECT_TRUE(FindReadChoice(choices_, "1").has_value());
  EXPECT_TRUE(FindReadChoice(choices_, std::to_string(kReadChoicesMax)).has_value());
}

TEST_F(ReadFiles, KeyTellsFilesMachinesAndSizesApart) {
  const std::string key = ReadChoiceKey("a machine", path_, 4096).value();
  EXPECT_EQ(key, ReadChoiceKey("a machine", path_, 4096).value());
  EXPECT_NE(key, ReadChoiceKey("another", path_, 4096).value());
  EXPECT_NE(key, ReadChoiceKey("a machine", path_, 8192).value());
  fs::resize_file(path_, 4096);
  EXPECT_NE(key, ReadChoiceKey("a machine", path_, 4096).value());
  EXPECT_FALSE(ReadChoiceKey("a machine", path_ + ".absent", 4096).has_value());
}

TEST_F(ReadFiles, PlaceThatCannotBeWrittenIsAnErrorThatNamesIt) {
  const Status kept = KeepReadChoice(path_ + "/smoe/reads.json", "here", Sample(1, 1, 7));
  ASSERT_FALSE(kept.has_value());
  EXPECT_NE(kept.error().message().find(path_), std::string::npos) << kept.error().message();
}

}  // namespace
}  // namespace smoe::io
