#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace smoe::model {
namespace {

KvShape SmallShape() { return {.layer_count = 3, .kv_width = 8, .key_value_heads = 2}; }

std::unique_ptr<KvCache> MakeCache(size_t token_max) {
  auto cache = KvCache::Create(SmallShape(), token_max);
  EXPECT_TRUE(cache.has_value());
  return std::move(*cache);
}

TEST(KvCache, TakesTwoFloatsPerLayerAndWidth) {
  EXPECT_EQ(KvBytesPerToken(SmallShape()), 2u * 4 * 3 * 8);
}

TEST(KvCache, RoundsUpToPagesAndRefusesOneTokenMore) {
  const auto cache = MakeCache(kKvPageTokens + 1);  // two pages a layer
  EXPECT_EQ(cache->free_page_count(), 6u);
  EXPECT_EQ(cache->free_token_count(), 2 * kKvPageTokens);
  KvSequence sequence = cache->NewSequence();
  ASSERT_TRUE(sequence.Reserve(2 * kKvPageTokens).has_value());
  EXPECT_EQ(cache->free_page_count(), 0u);
  const Status refused = sequence.Reserve(2 * kKvPageTokens + 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message().find("65 tokens asked"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find("64 fit"), std::string::npos)
      << refused.error().message();
  EXPECT_EQ(sequence.token_room(), 2 * kKvPageTokens);
}

TEST(KvCache, RefusesSizesThatOverflow) {
  for (const size_t token_max : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 192, size_t{1} << 55}) {
    const auto cache = KvCache::Create(SmallShape(), token_max);
    ASSERT_FALSE(cache.has_value()) << token_max;
    EXPECT_EQ(cache.error().code(), ErrorCode::kExhausted);
  }
}

TEST(KvCache, PageTablesPointAtTheRowsOfTheirHead) {
  const auto cache = MakeCache(4 * kKvPageTokens);
  KvSequence sequence = cache->NewSequence();
  ASSERT_TRUE(sequence.Reserve(3 * kKvPageTokens).has_value());
  for (uint32_t layer = 0; layer < 3; ++layer) {
    for (uint32_t head = 0; head < 2; ++head) {
      ASSERT_EQ(sequence.KeyPages(layer, head).size(), 3u);
      ASSERT_EQ(sequence.ValuePages(layer, head).size(), 3u);
      for (size_t page = 0; page < 3; ++page) {
        EXPECT_EQ(sequence.KeyPages(layer, head)[page],
                  sequence.Key(layer, page * kKvPageTokens) + head * 4);
        EXPECT_EQ(sequence.ValuePages(layer, head)[page],
                  sequence.Value(layer, page * kKvPageTokens) + head * 4);
      }
    }
    EXPECT_EQ(sequence.Key(layer, 5) + 8, sequence.Key(layer, 6));
  }
}

TEST(KvCache, MovedFromSequencesGiveNothingBackTwice) {
  const auto cache = MakeCache(4 * kKvPageTokens);
  {
    KvSequence first = cache->NewSequence();
    ASSERT_TRUE(first.Reserve(1).has_value());
    KvSequence second = std::move(first);
    EXPECT_EQ(cache->free_page_count(), 9u);
    second = cache->NewSequence();  // the old pages return at once
    EXPECT_EQ(cache->free_page_count(), 12u);
    ASSERT_TRUE(second.Reserve(33).has_value());
    EXPECT_EQ(cache->free_page_count(), 6u);
  }
  EXPECT_EQ(cache->free_page_count(), 12u);
}

// Writes a number that names sequence, layer, position and element everywhere, grows, truncates and
// drops at random, and finds every number again: no page ever has two owners.
TEST(KvCache, RandomSequencesNeverSeeEachOthersRows) {
  constexpr uint32_t kSeed = 20240611;
  std::mt19937 random(kSeed);
  const auto cache = MakeCache(12 * kKvPageTokens);
  const size_t page_total = cache->free_page_count();
  const KvShape shape = SmallShape();
  std::map<int, KvSequence> sequences;
  const auto mark = [&](int owner, uint32_t layer, size_t position, uint32_t element) {
    return static_cast<float>(
        ((owner * 3 + static_cast<int>(layer)) * 512 + static_cast<int>(position)) * 8 +
        static_cast<int>(element));
  };
  for (int round = 0; round < 600; ++round) {
    const int owner = static_cast<int>(random() % 5);
    KvSequence& sequence = sequences.try_emplace(owner, cache->NewSequence()).first->second;
    const uint32_t action = static_cast<uint32_t>(random() % 8);
    if (action == 0) {
      sequences.erase(owner);
    } else if (action == 1) {
      sequence.Truncate(random() % (sequence.token_count() + 1));
    } else {
      const size_t first = sequence.token_count();
      const size_t count = first + random() % 40;
      if (!sequence.Reserve(count).has_value()) continue;
      for (size_t position = first; position < count; ++position) {
        for (uint32_t layer = 0; layer < shape.layer_count; ++layer) {
          for (uint32_t element = 0; element < shape.kv_width; ++element) {
            sequence.Key(layer, position)[element] = mark(owner, layer, position, element);
            sequence.Value(layer, position)[element] = -mark(owner, layer, position, element);
          }
        }
      }
      sequence.SetTokenCount(count);
    }
    size_t page_owned = 0;
    for (auto& [name, owned] : sequences) {
      page_owned += owned.token_room() / kKvPageTokens * shape.layer_count;
      for (size_t position = 0; position < owned.token_count(); ++position) {
        for (uint32_t layer = 0; layer < shape.layer_count; ++layer) {
          const size_t element = (position + static_cast<size_t>(round)) % shape.kv_width;
          const float expected = mark(name, layer, position, static_cast<uint32_t>(element));
          ASSERT_EQ(owned.Key(layer, position)[element], expected) << "seed " << kSeed;
          ASSERT_EQ(owned.Value(layer, position)[element], -expected) << "seed " << kSeed;
        }
      }
    }
    ASSERT_EQ(page_owned + cache->free_page_count(), page_total) << "seed " << kSeed;
  }
}

}  // namespace
}  // namespace smoe::model
