#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "tensor/dtype.h"

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
  EXPECT_EQ(cache->pool().page_count(), 2u);
  EXPECT_EQ(cache->free_token_count(), 2 * kKvPageTokens);
  KvSequence sequence = cache->NewSequence();
  ASSERT_TRUE(sequence.Reserve(2 * kKvPageTokens).has_value());
  EXPECT_EQ(cache->pool().unused_count(), 0u);
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

// Two tokens of two heads of 4, found where kernels::AttentionJob says.
TEST(KvCache, KeysLieTransposedAndValuesInRowsBehindThem) {
  for (const kernels::KvKind kind : {kernels::KvKind::kF32, kernels::KvKind::kF16}) {
    KvShape shape = SmallShape();
    shape.kind = kind;
    auto made = KvCache::Create(shape, 4 * kKvPageTokens);
    ASSERT_TRUE(made.has_value());
    KvSequence sequence = (*made)->NewSequence();
    ASSERT_TRUE(sequence.Reserve(3 * kKvPageTokens).has_value());
    const std::vector<float> keys = {1, 2, 3, 4, 5, 6, 7, 8};
    const std::vector<float> values = {-1, -2, -3, -4, -5, -6, -7, -8};
    sequence.Write(kernels::kScalarKernels, 1, kKvPageTokens + 5, keys.data(), values.data());
    ASSERT_EQ(sequence.Pages(1).size(), 3u);
    const size_t bytes = kind == kernels::KvKind::kF16 ? 2 : 4;
    const auto element = [&](size_t head, size_t index) {
      const std::byte* at =
          sequence.Pages(1)[1] + sequence.HeadOffset(static_cast<uint32_t>(head)) + index * bytes;
      uint32_t bits = 0;
      std::memcpy(&bits, at, bytes);
      return kind == kernels::KvKind::kF16 ? tensor::F32FromF16(static_cast<uint16_t>(bits))
                                           : std::bit_cast<float>(bits);
    };
    EXPECT_EQ(element(0, 0 * 32 + 5), 1);
    EXPECT_EQ(element(0, 3 * 32 + 5), 4);
    EXPECT_EQ(element(1, 2 * 32 + 5), 7);
    EXPECT_EQ(element(0, 4 * 32 + 5 * 4 + 0), -1);
    EXPECT_EQ(element(1, 4 * 32 + 5 * 4 + 3), -8);
  }
}

TEST(KvCache, HalvesAreRoundedToTheNearestEven) {
  KvShape shape = {.layer_count = 1, .kv_width = 300, .key_value_heads = 1};
  shape.kind = kernels::KvKind::kF16;
  EXPECT_EQ(KvBytesPerToken(shape), 2u * 2 * 300);
  auto made = KvCache::Create(shape, 1);
  ASSERT_TRUE(made.has_value());
  KvSequence sequence = (*made)->NewSequence();
  ASSERT_TRUE(sequence.Reserve(1).has_value());
  std::vector<float> row(300, 1 + 0x1p-11f);  // halfway between 1 and 1 + 2^-10
  row[299] = 1 + 0x3p-11f;
  sequence.Write(kernels::kScalarKernels, 0, 31, row.data(), row.data());
  EXPECT_EQ(sequence.KeyAt(0, 31, 0), 1.0f);
  EXPECT_EQ(sequence.KeyAt(0, 31, 299), 1 + 0x1p-9f);
  EXPECT_EQ(sequence.ValueAt(0, 31, 298), 1.0f);
  EXPECT_EQ(sequence.ValueAt(0, 31, 299), 1 + 0x1p-9f);
}

// Two heads of 40: a group of 32 elements and one of 8 each, with a scale of 2 bytes.
TEST(KvCache, CodesOfOneByteAreOffByHalfAScaleAtMost) {
  KvShape shape = {.layer_count = 1, .kv_width = 80, .key_value_heads = 2};
  shape.kind = kernels::KvKind::kInt8;
  EXPECT_EQ(KvBytesPerToken(shape), 2u * 2 * (40 + 2 * 2));
  auto made = KvCache::Create(shape, 1);
  ASSERT_TRUE(made.has_value());
  KvSequence sequence = (*made)->NewSequence();
  ASSERT_TRUE(sequence.Reserve(1).has_value());
  std::vector<float> keys(80);
  std::vector<float> values(80);
  for (size_t i = 0; i < keys.size(); ++i) {  // largest magnitudes: 127 keys, 254 values
    keys[i] = i % 8 == 0 ? -127 : static_cast<float>(i) + 0.25f;
    values[i] = i % 8 == 7 ? 254 : -2 * static_cast<float>(i);
  }
  sequence.Write(kernels::kScalarKernels, 0, 17, keys.data(), values.data());
  for (uint32_t i = 0; i < 80; ++i) {
    EXPECT_EQ(sequence.KeyAt(0, 17, i), i % 8 == 0 ? -127 : static_cast<float>(i));
    EXPECT_EQ(sequence.ValueAt(0, 17, i), values[i]);
  }
}

TEST(KvCache, MovedFromSequencesGiveNothingBackTwice) {
  const auto cache = MakeCache(4 * kKvPageTokens);
  {
    KvSequence first = cache->NewSequence();
    ASSERT_TRUE(first.Reserve(1).has_value());
    KvSequence second = std::move(first);
    EXPECT_EQ(cache->pool().unused_count(), 3u);
    second = cache->NewSequence();  // the old pages return at once
    EXPECT_EQ(cache->pool().unused_count(), 4u);
    ASSERT_TRUE(second.Reserve(33).has_value());
    EXPECT_EQ(cache->pool().unused_count(), 2u);
  }
  EXPECT_EQ(cache->pool().unused_count(), 4u);
}

// Writes a number that names sequence, layer, position and element everywhere, grows, truncates and
// drops at random, and finds every number again: no page ever has two owners.
TEST(KvCache, RandomSequencesNeverSeeEachOthersRows) {
  constexpr uint32_t kSeed = 20240611;
  std::mt19937 random(kSeed);
  const auto cache = MakeCache(12 * kKvPageTokens);
  const size_t page_total = cache->pool().unused_count();
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
          std::vector<float> keys(shape.kv_width);
          std::vector<float> values(shape.kv_width);
          for (uint32_t element = 0; element < shape.kv_width; ++element) {
            keys[element] = mark(owner, layer, position, element);
            values[element] = -keys[element];
          }
          sequence.Write(kernels::kScalarKernels, layer, position, keys.data(), values.data());
        }
      }
      sequence.SetTokenCount(count);
    }
    size_t page_owned = 0;
    for (auto& [name, owned] : sequences) {
      page_owned += owned.token_room() / kKvPageTokens;
      for (size_t position = 0; position < owned.token_count(); ++position) {
        for (uint32_t layer = 0; layer < shape.layer_count; ++layer) {
          const auto element =
              static_cast<uint32_t>((position + static_cast<size_t>(round)) % shape.kv_width);
          const float expected = mark(name, layer, position, element);
          ASSERT_EQ(owned.KeyAt(layer, position, element), expected) << "seed " << kSeed;
          ASSERT_EQ(owned.ValueAt(layer, position, element), -expected) << "seed " << kSeed;
        }
      }
    }
    ASSERT_EQ(page_owned + cache->pool().unused_count(), page_total) << "seed " << kSeed;
  }
}

// What a sequence of these tokens holds at a position: a number of all tokens up to it.
float Digest(std::span<const uint32_t> tokens, size_t position) {
  uint32_t digest = 1;
  for (size_t i = 0; i <= position; ++i) digest = (digest * 31 + tokens[i]) % 999983;
  return static_cast<float>(digest);
}

// Computes the tokens from the sequence's own on, like a model would.
void Compute(KvSequence* sequence, std::span<const uint32_t> tokens) {
  const size_t first = sequence->token_count();
  ASSERT_TRUE(sequence->Reserve(tokens.size()).has_value());
  for (size_t position = first; position < tokens.size(); ++position) {
    const std::vector<float> row(8, Digest(tokens, position));
    for (uint32_t layer = 0; layer < 3; ++layer) {
      sequence->Write(kernels::kScalarKernels, layer, position, row.data(), row.data());
    }
  }
  sequence->SetTokenCount(tokens.size());
}

void ExpectHolds(const KvSequence& sequence, std::span<const uint32_t> tokens) {
  for (size_t position = 0; position < sequence.token_count(); ++position) {
    for (uint32_t layer = 0; layer < 3; ++layer) {
      ASSERT_EQ(sequence.KeyAt(layer, position, 7), Digest(tokens, position)) << position;
      ASSERT_EQ(sequence.ValueAt(layer, position, 0), Digest(tokens, position)) << position;
    }
  }
}

std::vector<uint32_t> Count(uint32_t first, size_t count) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<uint32_t>(i);
  return tokens;
}

TEST(KvCache, AdoptsTheCommonBeginningAndLeavesTheOtherAsItWas) {
  const auto cache = MakeCache(8 * kKvPageTokens);
  const std::vector<uint32_t> one = Count(100, 80);  // two pages and a half
  std::vector<uint32_t> two = one;
  two[70] = 7;
  KvSequence first = cache->NewSequence();
  Compute(&first, one);
  first.Retire(one);
  EXPECT_EQ(cache->pool().kept_unused_count(), 3u);

  KvSequence second = cache->NewSequence();
  second.Adopt(two);
  EXPECT_EQ(second.token_count(), 70u);
  Compute(&second, two);
  ExpectHolds(second, two);
  EXPECT_EQ(cache->pool().unused_count(), 8u - 3) << "two pages shared, the third a copy";

  KvSequence again = cache->NewSequence();
  again.Adopt(one);
  EXPECT_EQ(again.token_count(), 80u);
  ExpectHolds(again, one);
}

TEST(KvCache, AdoptsNoMoreTokensThanItIsTold) {
  const auto cache = MakeCache(8 * kKvPageTokens);
  const std::vector<uint32_t> tokens = Count(0, 2 * kKvPageTokens);
  KvSequence first = cache->NewSequence();
  Compute(&first, tokens);
  first.Retire(tokens);
  for (const size_t count : {size_t{0}, size_t{1}, kKvPageTokens - 1, kKvPageTokens,
                             kKvPageTokens + 1, tokens.size() - 1, tokens.size()}) {
    KvSequence sequence = cache->NewSequence();
    sequence.Adopt(std::span(tokens).first(count));
    EXPECT_EQ(sequence.token_count(), count);
    ExpectHolds(sequence, tokens);
  }
}

TEST(KvCache, ASequenceAdoptsWhatItsNeighbourComputedMeanwhile) {
  const auto cache = MakeCache(8 * kKvPageTokens);
  const std::vector<uint32_t> tokens = Count(5, 100);
  KvSequence ahead = cache->NewSequence();
  KvSequence behind = cache->NewSequence();
  Compute(&behind, std::span(tokens).first(10));
  Compute(&ahead, std::span(tokens).first(70));
  ahead.Keep(tokens);  // two full pages
  behind.Adopt(tokens);
  EXPECT_EQ(behind.token_count(), 64u);
  Compute(&behind, tokens);
  ExpectHolds(behind, tokens);
  Compute(&ahead, tokens);
  ExpectHolds(ahead, tokens);
  EXPECT_EQ(cache->pool().unused_count(), 8u - 6);
  ahead.Keep(tokens);
  behind.Keep(tokens);
  EXPECT_EQ(cache->pool().unused_count(), 8u - 5) << "three pages shared, and a last one each";
  ExpectHolds(behind, tokens);
}

TEST(KvCache, KeptPagesGoWhenARunningSequenceNeedsThem) {
  const auto cache = MakeCache(4 * kKvPageTokens);
  const std::vector<uint32_t> old = Count(1000, 2 * kKvPageTokens);
  KvSequence first = cache->NewSequence();
  Compute(&first, old);
  first.Retire(old);
  const std::vector<uint32_t> tokens = Count(5, 3 * kKvPageTokens);
  KvSequence second = cache->NewSequence();
  Compute(&second, tokens);
  KvSequence third = cache->NewSequence();
  third.Adopt(old);
  EXPECT_EQ(third.token_count(), kKvPageTokens) << "its end went, its beginning is there";
  EXPECT_FALSE(third.Reserve(kKvPageTokens + 1).has_value()) << "those in use never go";
  ExpectHolds(third, old);
  ExpectHolds(second, tokens);
}

// Where no page is left for a copy, full pages are adopted all the same.
TEST(KvCache, AdoptsFullPagesWhenNoneIsLeftForACopy) {
  const auto cache = MakeCache(2 * kKvPageTokens);
  const std::vector<uint32_t> tokens = Count(5, 2 * kKvPageTokens);
  KvSequence first = cache->NewSequence();
  Compute(&first, tokens);
  first.Retire(tokens);
  KvSequence second = cache->NewSequence();
  second.Adopt(std::span(tokens).first(50));
  EXPECT_EQ(second.token_count(), kKvPageTokens);
  Compute(&second, tokens);
  ExpectHolds(second, tokens);
}

// Few tokens to choose from, so that beginnings are often alike; few pages, so that they go often.
TEST(KvCache, RandomSequencesAdoptOnlyWhatTheyWouldHaveComputed) {
  constexpr uint32_t kSeed = 77;
  std::mt19937 random(kSeed);
  const auto cache = MakeCache(20 * kKvPageTokens);
  struct Owned {
    KvSequence kv;
    std::vector<uint32_t> tokens;
  };
  std::map<int, Owned> running;
  size_t adopted = 0;
  for (int round = 0; round < 3000; ++round) {
    const int name = static_cast<int>(random() % 4);
    const auto at = running.find(name);
    if (at == running.end()) {
      Owned& owned = running[name];
      owned.kv = cache->NewSequence();
      const size_t count = 1 + random() % 150;
      uint32_t token = 0;
      for (size_t i = 0; i < count; ++i) {
        if (random() % 40 == 0) token = static_cast<uint32_t>(random() % 2);
        owned.tokens.push_back(token);
      }
      continue;
    }
    Owned& owned = at->second;
    const size_t before = owned.kv.token_count();
    owned.kv.Adopt(owned.tokens);
    adopted += owned.kv.token_count() - before;
    ExpectHolds(owned.kv, owned.tokens);
    const size_t count =
        std::min<size_t>(owned.tokens.size(), owned.kv.token_count() + random() % 60);
    if (count >= owned.kv.token_count() && owned.kv.Reserve(count).has_value()) {
      Compute(&owned.kv, std::span(owned.tokens).first(count));
      owned.kv.Keep(owned.tokens);
    }
    ExpectHolds(owned.kv, owned.tokens);
    if (random() % 4 != 0) continue;
    if (random() % 4 != 0) owned.kv.Retire(owned.tokens);
    running.erase(at);
  }
  EXPECT_GT(adopted, 20000u) << "seed " << kSeed;
  EXPECT_GT(cache->pool().forgotten_count(), 200u);
  running.clear();
  EXPECT_EQ(cache->pool().unused_count(), 20u);
}

}  // namespace
}  // namespace smoe::model
