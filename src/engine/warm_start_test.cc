#include "engine/warm_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/hot_set.h"
#include "experts/store_for_test.h"
#include "io/fake_read_queue.h"
#include "store/model_fingerprint.h"

namespace smoe::engine {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class WarmStartTest : public testing::Test {
 protected:
  WarmStartTest()
      : folder_(fs::temp_directory_path() / fmt::format("smoe_warm_start_{}", getpid())),
        path_((folder_ / "deep" / "hot-test.json").string()) {
    Restart(8);
  }
  ~WarmStartTest() override {
    cache_.reset();
    fs::remove_all(folder_);
  }

  void Restart(uint32_t slots) {
    cache_.reset();
    order_.clear();
    queue_ = io::MakeFakeReadQueue({.fault = [this](const io::ReadRequest& request) {
      order_.push_back(request.offset / store_.slot_bytes());
      return 0;
    }});
    auto cache = experts::ExpertCache::Create(store_, *queue_, {.slot_count = slots});
    ASSERT_TRUE(cache.has_value());
    cache_ = std::move(*cache);
  }
  void RunPass(const std::vector<store::ExpertId>& wanted) {
    cache_->Begin(wanted);
    while (const auto next = cache_->Next().value()) cache_->Release(*next);
  }
  void WriteFile(const std::string& text) {
    fs::create_directories(fs::path(path_).parent_path());
    std::ofstream(path_) << text;
  }

  experts::TestStore store_{{.layers = {{0, 8}, {2, 8}}}};
  const fs::path folder_;
  const std::string path_;
  std::vector<uint64_t> order_;
  std::unique_ptr<io::ReadQueue> queue_;
  std::unique_ptr<experts::ExpertCache> cache_;
};

// What is kept are shares of the tokens, halved: 5 of layer 2 all of them, 3 of layer 0 16 of 20, 4
// of layer 0 4 of 20; 1 of layer 2, with 1 of 40, half of which is less than 1/64.
TEST_F(WarmStartTest, TheNextRunReadsWhatThisOneWantedMostFirst) {
  {
    WarmStart warm(*cache_, store_, path_);
    EXPECT_THAT(warm.sentence(), HasSubstr("knows no expert"));
    for (int i = 0; i < 16; ++i) RunPass({{0, 3}});
    for (int i = 0; i < 4; ++i) RunPass({{0, 4}});
    RunPass({{2, 5}, {2, 1}});
    for (int i = 0; i < 39; ++i) RunPass({{2, 5}});
  }
  Restart(8);
  WarmStart warm(*cache_, store_, path_);
  EXPECT_THAT(warm.sentence(), HasSubstr("warm start: 3 experts"));
  while (cache_->Audit().resident < 3) RunPass({});
  for (int i = 0; i < 20; ++i) RunPass({});
  EXPECT_EQ(order_, (std::vector<uint64_t>{8 + 5, 3, 4}));
}

TEST_F(WarmStartTest, WorthHalvesWithEachRunThatDoesNotWantTheExpert) {
  ASSERT_TRUE(WriteHotSet(path_, {0, 0, 0.8, 0, 0, 0, 0, 0, 0.4, 0, 0, 0, 0, 0, 0, 0}));
  {
    WarmStart warm(*cache_, store_, path_);
    EXPECT_DOUBLE_EQ(cache_->LastingWorths()[2], 0.4);
    RunPass({{2, 7}});
  }
  const auto kept = ReadHotSet(path_, 16);
  ASSERT_TRUE(kept.has_value());
  EXPECT_NEAR((*kept)[2], 0.4, 1e-6) << "of a layer that saw no token";
  // The average of layer 1: a quarter of it recalled, and one token, 1 - 2^(-1/1024) = 0.000677 of
  // it: 0.249831 / (0.249831 + 0.000677) and 0.000677 / (0.249831 + 0.000677).
  EXPECT_NEAR((*kept)[8], 0.2 * 0.997299, 1e-6);
  EXPECT_NEAR((*kept)[15], 0.002701, 1e-6);
}

TEST_F(WarmStartTest, ARunThatWantedNothingLeavesTheFileAlone) {
  ASSERT_TRUE(WriteHotSet(path_, std::vector<double>(16, 0.5)));
  const std::string before = ReadText(path_);
  { WarmStart warm(*cache_, store_, path_); }
  EXPECT_EQ(ReadText(path_), before);
}

TEST_F(WarmStartTest, DamagedFilesAndThoseOfAnotherVersionOrCountAreIgnoredAndReplaced) {
  const std::string head = R"({"version": 1, "worths": )";
  for (const std::string& text :
       {std::string(), std::string("\0\xff{", 3), std::string("[]"), std::string("{}"), head,
        head + "[1, 2]}", head + "[-1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}",
        head + "[1000001,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}",
        head + "[\"1\",0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}", head + "3}",
        std::string(R"({"version": 2, "worths": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]})")}) {
    Restart(8);
    WriteFile(text);
    const auto read = ReadHotSet(path_, 16);
    ASSERT_FALSE(read.has_value()) << text;
    EXPECT_THAT(read.error().message(), HasSubstr(path_)) << text;
    {
      WarmStart warm(*cache_, store_, path_);
      EXPECT_THAT(warm.sentence(), HasSubstr("knows no expert"));
      RunPass({{0, 1}});
    }
    EXPECT_TRUE(ReadHotSet(path_, 16).has_value()) << text;
  }
}

TEST_F(WarmStartTest, AFileOfTheLargestSizeIsReadAndOneByteMoreIsRefused) {
  std::string text = R"({"version": 1, "worths": [7]})";
  text.resize(kHotSetBytesMax, ' ');
  WriteFile(text);
  EXPECT_TRUE(ReadHotSet(path_, 1).has_value());
  WriteFile(text + " ");
  EXPECT_FALSE(ReadHotSet(path_, 1).has_value());
}

// Each either writes its file whole or finds that the other is just writing.
TEST_F(WarmStartTest, TwoWritersLeaveOneOfTheirFiles) {
  const auto write = [&](double worth) {
    for (int i = 0; i < 40; ++i) {
      const Status done = WriteHotSet(path_, std::vector<double>(4000, worth));
      if (!done) {
        EXPECT_THAT(done.error().message(), HasSubstr(path_));
      }
    }
  };
  write(0.5);
  std::thread first(write, 0.25);
  std::thread second(write, 0.75);
  for (int i = 0; i < 200; ++i) {
    const auto read = ReadHotSet(path_, 4000);
    ASSERT_TRUE(read.has_value()) << read.error().message();
    EXPECT_EQ(read->front(), read->back());
  }
  first.join();
  second.join();
}

TEST_F(WarmStartTest, OfManyHotSetsTheYoungestStay) {
  const fs::path folder = fs::path(path_).parent_path();
  fs::create_directories(folder);
  for (size_t i = 0; i < kHotSetsMax; ++i) {
    const fs::path old = folder / fmt::format("hot-{}.json", i);
    std::ofstream(old) << "{}";
    const auto age = std::chrono::hours(100 - static_cast<int>(i));
    fs::last_write_time(old, fs::file_time_type::clock::now() - age);
  }
  std::ofstream(folder / "reads.json") << "{}";
  ASSERT_TRUE(WriteHotSet(path_, {0.5}));
  EXPECT_FALSE(fs::exists(folder / "hot-0.json"));
  EXPECT_TRUE(fs::exists(folder / "hot-1.json"));
  EXPECT_TRUE(fs::exists(folder / "reads.json"));
  EXPECT_TRUE(fs::exists(path_));
}

TEST(HotSetPath, HasTheModelsFingerprintAndWantsAFolder) {
  const auto files =
      store::OpenModelFiles(std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe", {}).value();
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(HotSetPath(files).value(),
            fmt::format("/cache/smoe/hot-{:016x}.json", store::ModelFingerprint(files).value()));
  setenv("XDG_CACHE_HOME", "relative", 1);
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  unsetenv("HOME");
  const auto none = HotSetPath(files);
  setenv("HOME", home.c_str(), 1);
  unsetenv("XDG_CACHE_HOME");
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), ErrorCode::kInvalid);
  EXPECT_THAT(none.error().message(), HasSubstr("set XDG_CACHE_HOME or HOME"));
}

TEST_F(WarmStartTest, AFolderThatCannotBeMadeIsNoObstacle) {
  WriteFile("");
  const std::string path = path_ + "/below-a-file.json";
  WarmStart warm(*cache_, store_, path);
  RunPass({{0, 1}});
  warm.Keep();
  EXPECT_EQ(cache_->stats().miss_count, 1u);
}

}  // namespace
}  // namespace smoe::engine
