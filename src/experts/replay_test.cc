#include "experts/replay.h"

#include <gtest/gtest.h>

#include <string>

namespace smoe::experts {
namespace {

constexpr char kHeader[] = "# smoe trace 1\n# experts 4 top_k 1 expert_bytes 100 model m.smoe\n";

Trace Parsed(const std::string& text) {
  auto trace = ParseTrace(text);
  EXPECT_TRUE(trace.has_value()) << trace.error().message();
  return trace.has_value() ? *trace : Trace();
}

std::string ErrorOf(const std::string& text) {
  const auto trace = ParseTrace(text);
  return trace.has_value() ? "no error" : trace.error().message();
}

TEST(Trace, ReadsWhatItWrites) {
  Trace trace;
  trace.expert_count = 128;
  trace.top_k = 2;
  trace.expert_bytes = 2506752;
  trace.model = "a model.smoe";
  std::string text = TraceHeader(trace);
  const uint32_t ids[][2] = {{5, 17}, {0, 127}, {1, 2}, {3, 4}};
  for (uint32_t line = 0; line < 4; ++line)
    AppendTraceLine(line % 2 == 0 ? 3 : 7, ids[line], &text);
  const Trace read = Parsed(text);
  EXPECT_EQ(read.expert_count, 128U);
  EXPECT_EQ(read.expert_bytes, 2506752U);
  EXPECT_EQ(read.model, "a model.smoe");
  EXPECT_EQ(read.layers, (std::vector<uint32_t>{3, 7}));
  EXPECT_EQ(read.expert_ids, (std::vector<uint32_t>{5, 17, 0, 127, 1, 2, 3, 4}));
  EXPECT_EQ(read.token_count(), 2U);
}

TEST(Trace, OneWithoutTokensIsEmpty) { EXPECT_EQ(Parsed(kHeader).token_count(), 0U); }

TEST(Trace, SaysWhichLineIsWrong) {
  const std::string header = kHeader;
  EXPECT_NE(ErrorOf("layer 1").find("line 1"), std::string::npos);
  EXPECT_NE(ErrorOf("").find("line 1"), std::string::npos);
  EXPECT_NE(ErrorOf("# smoe trace 1\n# experts 4\n").find("line 2"), std::string::npos);
  EXPECT_NE(ErrorOf("# smoe trace 1\n# experts 4 top_k 5 expert_bytes 1 model m\n").find("top_k 5"),
            std::string::npos);
  EXPECT_NE(ErrorOf(header + "0 4\n").find("below 4"), std::string::npos);
  EXPECT_NE(ErrorOf(header + "0 -1\n").find("line 3"), std::string::npos);
  EXPECT_NE(ErrorOf(header + "0 1 2\n").find("then \"2\""), std::string::npos);
  EXPECT_NE(ErrorOf(header + "0\n").find("line 3"), std::string::npos);
  EXPECT_NE(ErrorOf(header + "0 1\n\n0 1\n").find("line 4: a layer"), std::string::npos);
  EXPECT_NE(ErrorOf(header + "0 1\n1 1\n0 1\n").find("ends inside a token"), std::string::npos);
  EXPECT_NE(ErrorOf(header + "0 1\n1 1\n0 1\n2 1\n").find("layer 1 expected, 2 found"),
            std::string::npos);
  EXPECT_NE(ErrorOf(header + "99999999999 1\n").find("line 3"), std::string::npos);
}

TEST(Trace, RefusesALineWithoutItsEnd) {
  const std::string header = kHeader;
  EXPECT_EQ(Parsed(header + "0 1\n0 2\n").token_count(), 2U);
  EXPECT_NE(ErrorOf(header + "0 1\n0 2").find("line 4: a line's end expected"), std::string::npos);
}

TEST(Trace, LimitsTheBytesOfAnExpert) {
  const auto header = [](const std::string& bytes) {
    return "# smoe trace 1\n# experts 4 top_k 1 expert_bytes " + bytes + " model m\n0 1\n";
  };
  static_assert(kTraceExpertBytesMax == 1099511627776);
  EXPECT_EQ(Parsed(header("1099511627776")).token_count(), 1U);
  EXPECT_NE(ErrorOf(header("1099511627777")).find("expert_bytes 1099511627777, expected 1 to"),
            std::string::npos);
  EXPECT_NE(ErrorOf(header("0")).find("expert_bytes 0, expected"), std::string::npos);
}

// Four billion experts would be 64 GB of worths.
TEST(Trace, LimitsTheExpertsOfAllLayers) {
  const auto header = [](uint32_t expert_count) {
    return "# smoe trace 1\n# experts " + std::to_string(expert_count) +
           " top_k 1 expert_bytes 1 model m\n";
  };
  static_assert(kTraceExpertsMax == 1048576);
  EXPECT_EQ(Parsed(header(1048576) + "0 1048575\n").token_count(), 1U);
  EXPECT_NE(ErrorOf(header(1048577)).find("line 2: 1048577 experts"), std::string::npos);
  EXPECT_EQ(Parsed(header(524288) + "0 1\n5 1\n").layers.size(), 2U);
  EXPECT_NE(ErrorOf(header(524288) + "0 1\n5 1\n6 1\n").find("line 5: 3 layers of 524288"),
            std::string::npos);
}

// One layer, one expert a token: 0 1 2 0 1 2 ... with two slots. Belady by hand: 0, 1, 2 missed; 2
// took the place of 1 (wanted later than 0): 0 hit, 1 missed in the place of 0, 2 hit, 0 missed in
// the place of 1, 1 missed in the place of 2 or 0, ...
Trace RoundRobin(int rounds) {
  std::string text = kHeader;
  for (int i = 0; i < rounds; ++i) text += "0 0\n0 1\n0 2\n";
  return Parsed(text);
}

TEST(Replay, LruNeverHitsARoundThatIsOneTooLong) {
  const ReplayCounts lru = Replay(RoundRobin(10), Eviction::kLru, 2, 0);
  EXPECT_EQ(lru.wanted_count, 30U);
  EXPECT_EQ(lru.miss_count, 30U);
}

// MIN on a cycle of n over n - 1 slots misses once every n - 1 requests after the first n - 1.
TEST(Replay, BeladyMissesHalfOfIt) {
  const ReplayCounts belady = ReplayBelady(RoundRobin(10), 2, 0);
  EXPECT_EQ(belady.miss_count, 2U + 14U);
}

TEST(Replay, AllThatFitsIsReadOnce) {
  for (const Eviction eviction : {Eviction::kFrequency, Eviction::kLru}) {
    EXPECT_EQ(Replay(RoundRobin(10), eviction, 3, 0).miss_count, 3U);
    EXPECT_EQ(Replay(RoundRobin(10), eviction, 3, 1).miss_count, 2U);
    EXPECT_EQ(Replay(RoundRobin(10), eviction, 3, 30).wanted_count, 0U);
  }
}

// Expert 0 is wanted every other token, the others in turn. With two slots LRU loses it each time
// two others came by; frequency keeps it.
TEST(Replay, FrequencyKeepsTheOneThatIsAlwaysInDemand) {
  std::string text = kHeader;
  for (int i = 0; i < 300; ++i) text += i % 3 == 0 ? "0 0\n" : fmt::format("0 {}\n", 1 + i % 3);
  const Trace trace = Parsed(text);
  const uint64_t lru = Replay(trace, Eviction::kLru, 2, 0).miss_count;
  const uint64_t frequency = Replay(trace, Eviction::kFrequency, 2, 0).miss_count;
  EXPECT_EQ(lru, 300U);
  EXPECT_LE(frequency, lru);
  EXPECT_LE(ReplayBelady(trace, 2, 0).miss_count, frequency);
}

}  // namespace
}  // namespace smoe::experts
