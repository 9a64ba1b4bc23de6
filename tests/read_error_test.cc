// A drive with a bad place under an engine: who needs it fails by name, the others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_for_test.h"
#include "io/bad_sector_for_test.h"

namespace smoe::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ReadErrorTest : public testing::TestWithParam<io::ReadBackend> {
 protected:
  // An engine whose reads are noted, and fail at `bad_offset`.
  std::unique_ptr<Engine> Open() {
    auto files =
        store::OpenModelFiles(std::string(SMOE_BINARY_DIR) + "/share/smoe/tiny-moe.smoe", {});
    EXPECT_TRUE(files.has_value());
    EngineOptions options;
    options.cache_experts = 7;
    options.context_tokens = 128;
    options.prefetch = experts::PrefetchMode::kOff;
    options.make_queue = [this]() -> Result<std::unique_ptr<io::ReadQueue>> {
      SMOE_TRY_ASSIGN(auto real, io::ReadQueue::Open(GetParam(), {}));
      return std::make_unique<io::BadSectorQueue>(std::move(real),
                                                  [this](const io::ReadRequest& request) {
                                                    offsets_.insert(request.offset);
                                                    return request.offset == bad_offset_;
                                                  });
    };
    return Engine::Open(std::move(*files), options).value();
  }

  static Request MakeRequest(std::vector<uint32_t> prompt) {
    Request request;
    request.prompt = std::move(prompt);
    request.token_count_max = 2;
    return request;
  }

  std::set<uint64_t> offsets_;
  uint64_t bad_offset_ = UINT64_MAX;
};

TEST_P(ReadErrorTest, RequestThatNeedsTheBadPlaceFailsByNameAndTheOtherGoesOn) {
  if (GetParam() == io::ReadBackend::kUring && !io::ReadQueue::OpenUring({})) {
    GTEST_SKIP() << "io_uring is not allowed here";
  }
  const Request doomed = MakeRequest({400});
  const Request sound = MakeRequest({7});
  const std::vector<uint32_t> expected = RunAlone(*Open(), sound).tokens;
  ASSERT_EQ(expected.size(), 2u);
  const std::set<uint64_t> of_sound = std::exchange(offsets_, {});
  ASSERT_EQ(RunAlone(*Open(), doomed).tokens.size(), 2u);
  std::vector<uint64_t> only_doomed;
  std::set_difference(offsets_.begin(), offsets_.end(), of_sound.begin(), of_sound.end(),
                      std::back_inserter(only_doomed));
  ASSERT_FALSE(only_doomed.empty());

  const auto engine = Open();
  bad_offset_ = only_doomed.front();
  // With seven slots, ten leaks would leave none.
  for (int i = 0; i < 10; ++i) {
    const uint64_t doomed_id = engine->Submit(doomed).value();
    const uint64_t sound_id = engine->Submit(sound).value();
    auto outcomes = Finish(*engine);
    EXPECT_THAT(outcomes[doomed_id].error,
                AllOf(HasSubstr("tiny-moe.smoe"), HasSubstr("expert"), HasSubstr("Input/output")));
    EXPECT_EQ(outcomes[sound_id].error, "");
    EXPECT_EQ(outcomes[sound_id].tokens, expected);
  }
  bad_offset_ = UINT64_MAX;
  EXPECT_EQ(RunAlone(*engine, doomed).error, "");
}

INSTANTIATE_TEST_SUITE_P(Queues, ReadErrorTest,
                         testing::Values(io::ReadBackend::kUring, io::ReadBackend::kThreads),
                         [](const auto& one) {
                           return one.param == io::ReadBackend::kUring ? "uring" : "threads";
                         });

}  // namespace
}  // namespace smoe::engine
