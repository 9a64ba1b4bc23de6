// Attention: the scalar table against a plain softmax in double precision, and every other table
// against the scalar one, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/data_for_test.h"

namespace smoe::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kUnitRoundoff = 0x1p-24;
constexpr KvKind kKinds[] = {KvKind::kF32, KvKind::kF16, KvKind::kInt8};

// Keys and values of one head in pages with something in front of it, as the cache holds them.
// Where no token lies, and between the heads, there is NaN.
struct Cache {
  Cache(KvKind kind_in, size_t head_dim_in, std::vector<float> keys_in,
        std::vector<float> values_in)
      : kind(kind_in),
        head_dim(head_dim_in),
        keys(std::move(keys_in)),
        values(std::move(values_in)) {
    const size_t key_count = keys.size() / head_dim;
    const size_t page_bytes = offset + kAttentionPage * KvTokenBytes(kind, head_dim);
    for (size_t page = 0; page * kAttentionPage < key_count; ++page) {
      memory.push_back(std::make_unique<std::byte[]>(page_bytes));
      std::memset(memory.back().get(), 0xff, page_bytes);  // a NaN in f32, in f16, and as a scale
      pages.push_back(memory.back().get());
    }
    for (size_t key = 0; key < key_count; ++key) {
      std::byte* const head = memory[key / kAttentionPage].get() + offset;
      const size_t row = key % kAttentionPage;
      float* const key_row = &keys[key * head_dim];
      float* const value_row = &values[key * head_dim];
      WriteKvToken(kScalarKernels, kind, key_row, value_row, head_dim, row, head);
      for (size_t i = 0; i < head_dim; ++i) {  // what that kind of cache makes of them
        key_row[i] = KvKeyAt(kind, head, head_dim, row, i);
        value_row[i] = KvValueAt(kind, head, head_dim, row, i);
      }
    }
  }

  KvKind kind;
  size_t head_dim;
  size_t offset = 12;         // nothing is aligned
  std::vector<float> keys;    // [key_count][head_dim], as stored
  std::vector<float> values;  // the same
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<const std::byte*> pages;
};

Cache RandomCache(Rng& rng, KvKind kind, size_t head_dim, size_t key_count) {
  return Cache(kind, head_dim, RandomFloats(rng, key_count * head_dim),
               RandomFloats(rng, key_count * head_dim));
}

struct Seen {
  size_t first_key;
  size_t key_count;
};

struct Scene {
  const Cache* cache;
  const std::vector<float>* queries;  // [seen][head_dim]
  std::vector<Seen> seen;
  float scale = 0.2f;
};

// All queries in one job over all keys.
std::vector<float> AttendWhole(const KernelTable& table, const Scene& scene) {
  const size_t head_dim = scene.cache->head_dim;
  const size_t count = scene.seen.size();
  std::vector<float> out(count * head_dim, -1);
  std::vector<float> work(kAttentionTile * head_dim, kNan);
  std::vector<AttentionState> states(count);
  std::vector<AttentionQuery> queries(count);
  for (size_t i = 0; i < count; ++i) {
    queries[i] = {.query = scene.queries->data() + i * head_dim,
                  .first_key = scene.seen[i].first_key,
                  .key_count = scene.seen[i].key_count,
                  .out = out.data() + i * head_dim,
                  .state = &states[i]};
  }
  table.attend({.kind = scene.cache->kind,
                .head_dim = head_dim,
                .scale = scene.scale,
                .pages = scene.cache->pages.data(),
                .page_offset = scene.cache->offset,
                .key_begin = 0,
                .key_end = SIZE_MAX,
                .queries = queries.data(),
                .query_count = count,
                .work = work.data()});
  for (size_t i = 0; i < count; ++i) {
    float* const row = out.data() + i * head_dim;
    table.merge_attention({.states = &states[i], .outs = row, .count = 1}, head_dim, row);
  }
  return out;
}

// Every part of every query on its own, the last one first, then merged.
std::vector<float> AttendInParts(const KernelTable& table, const Scene& scene) {
  const size_t head_dim = scene.cache->head_dim;
  std::vector<float> out(scene.seen.size() * head_dim, -1);
  for (size_t i = 0; i < scene.seen.size(); ++i) {
    const size_t part_count = (scene.seen[i].key_count + kAttentionPart - 1) / kAttentionPart;
    std::vector<float> outs(part_count * head_dim, kNan);
    std::vector<AttentionState> states(part_count);
    for (size_t part = part_count; part-- > 0;) {
      const AttentionQuery query = {.query = scene.queries->data() + i * head_dim,
                                    .first_key = scene.seen[i].first_key,
                                    .key_count = scene.seen[i].key_count,
                                    .out = outs.data() + part * head_dim,
                                    .state = &states[part]};
      table.attend({.kind = scene.cache->kind,
                    .head_dim = head_dim,
                    .scale = scene.scale,
                    .pages = scene.cache->pages.data(),
                    .page_offset = scene.cache->offset,
                    .key_begin = part * kAttentionPart,
                    .key_end = (part + 1) * kAttentionPart,
                    .queries = &query,
                    .query_count = 1});
    }
    table.merge_attention({.states = states.data(),
                           .state_stride = 1,
                           .outs = outs.data(),
                           .out_stride = head_dim,
                           .count = part_count},
                          head_dim, out.data() + i * head_dim);
  }
  return out;
}

bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Softmax of the keys that query `index` sees, in double precision.
void ExpectNearPlainSoftmax(const Scene& scene, size_t index, const float* out) {
  const Cache& cache = *scene.cache;
  const auto [first_key, key_count] = scene.seen[index];
  const float* const query = scene.queries->data() + index * cache.head_dim;
  std::vector<double> scores;
  double max = -1e300;
  double magnitude_max = 0;  // sum of the terms' magnitudes, times the scale
  for (size_t key = first_key; key < key_count; ++key) {
    double score = 0;
    double magnitude = 0;
    for (size_t i = 0; i < cache.head_dim; ++i) {
      const double term =
          static_cast<double>(query[i]) * static_cast<double>(cache.keys[key * cache.head_dim + i]);
      score += term;
      magnitude += std::fabs(term);
    }
    const auto scale = static_cast<double>(scene.scale);
    scores.push_back(score * scale);
    max = std::max(max, score * scale);
    magnitude_max = std::max(magnitude_max, magnitude * scale);
  }
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (size_t i = 0; i < cache.head_dim; ++i) {
    double expected = 0;
    double magnitude = 0;
    for (size_t key = first_key; key < key_count; ++key) {
      const double term = scores[key - first_key] / sum *
                          static_cast<double>(cache.values[key * cache.head_dim + i]);
      expected += term;
      magnitude += std::fabs(term);
    }
    // A score is a chain of head_dim roundings, each at most u times the magnitudes, then two more
    // (scale, minus the maximum); exp turns that, for key and maximum, into a relative error. Sums
    // over keys round once for each key of a part, and thrice for each merge.
    const double scores_off = 2 * magnitude_max * (static_cast<double>(cache.head_dim) + 4);
    const double parts = static_cast<double>(key_count) / kAttentionPart + 1;
    const double roundings = 2 * scores_off + 2 * kAttentionPart + 8 * parts + 10;
    EXPECT_NEAR(static_cast<double>(out[i]), expected, roundings * kUnitRoundoff * magnitude);
  }
}

TEST(ScalarAttention, MeetsAPlainSoftmaxInDoublePrecision) {
  Rng rng(7);
  for (const KvKind kind : kKinds) {
    for (const size_t head_dim : {1u, 31u, 64u, 128u}) {
      const size_t key_max = 2 * kAttentionPart + 33;
      const Cache cache = RandomCache(rng, kind, head_dim, key_max);
      Scene scene = {.cache = &cache, .queries = nullptr, .seen = {}};
      for (const size_t key_count : {size_t{1}, size_t{2}, size_t{31}, size_t{33},
                                     size_t{kAttentionPart}, kAttentionPart + size_t{1}, key_max}) {
        scene.seen.push_back({0, key_count});
        scene.seen.push_back({key_count / 2, key_count});
      }
      const std::vector<float> queries = RandomFloats(rng, scene.seen.size() * head_dim, 2);
      scene.queries = &queries;
      scene.scale = 1 / std::sqrt(static_cast<float>(head_dim));
      const std::vector<float> out = AttendWhole(kScalarKernels, scene);
      for (size_t i = 0; i < scene.seen.size(); ++i) {
        ExpectNearPlainSoftmax(scene, i, out.data() + i * head_dim);
      }
    }
  }
}

TEST(ScalarAttention, PartsOnTheirOwnGiveTheSameBits) {
  Rng rng(8);
  const Cache cache = RandomCache(rng, KvKind::kF32, 40, 3 * kAttentionPart + 5);
  const std::vector<float> queries = RandomFloats(rng, 4 * 40, 3);
  const Scene scene = {.cache = &cache,
                       .queries = &queries,
                       .seen = {{0, 3 * kAttentionPart + 5},
                                {kAttentionPart - 1, 2 * kAttentionPart + 1},
                                {3 * kAttentionPart, 3 * kAttentionPart + 5},
                                {5, 6}}};
  const std::vector<float> whole = AttendWhole(kScalarKernels, scene);
  EXPECT_TRUE(AllFinite(whole));
  EXPECT_TRUE(SameBits(whole, AttendInParts(kScalarKernels, scene)));
}

TEST(ScalarAttention, NoKeyAtAllIsNotANumber) {
  Rng rng(9);
  const Cache cache = RandomCache(rng, KvKind::kF32, 3, 40);
  const std::vector<float> queries = RandomFloats(rng, 3);
  const Scene scene = {.cache = &cache, .queries = &queries, .seen = {{40, 40}}};
  for (const float value : AttendWhole(kScalarKernels, scene)) EXPECT_TRUE(std::isnan(value));
}

class AttentionTables : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override {
    if (!table().runs_here()) GTEST_SKIP() << "this CPU does not run the table " << table().name;
  }
  const KernelTable& table() const { return *GetParam(); }
  void ExpectSame(const Scene& scene) const {
    const std::vector<float> expected = AttendWhole(kScalarKernels, scene);
    EXPECT_TRUE(SameBits(expected, AttendWhole(table(), scene)));
    EXPECT_TRUE(SameBits(expected, AttendInParts(table(), scene)));
  }
  Rng rng_{42};
};

// All but the last: that one is the scalar table itself.
INSTANTIATE_TEST_SUITE_P(, AttentionTables,
                         testing::ValuesIn(AllKernels().begin(), AllKernels().end() - 1),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(AttentionTables, GiveTheScalarBitsForEveryHeadSize) {
  for (const KvKind kind : kKinds) {
    for (const size_t head_dim : {1u, 7u, 8u, 16u, 17u, 63u, 64u, 80u, 96u, 128u, 200u, 256u}) {
      const Cache cache = RandomCache(rng_, kind, head_dim, kAttentionPart + 45);
      const std::vector<float> queries = RandomFloats(rng_, 3 * head_dim, 2);
      SCOPED_TRACE(head_dim);
      ExpectSame({.cache = &cache,
                  .queries = &queries,
                  .seen = {{0, 37}, {0, kAttentionPart + 45}, {30, kAttentionPart + 44}}});
    }
  }
}

// As in decode (all heads of one row), as in prefill (each query sees a key more), with a window.
TEST_P(AttentionTables, GiveTheScalarBitsForEveryNumberOfQueriesAndKeys) {
  constexpr size_t kHeadDim = 48;
  constexpr size_t kKeyMax = 3 * kAttentionPart + 20;
  for (const KvKind kind : kKinds) {
    const Cache cache = RandomCache(rng_, kind, kHeadDim, kKeyMax);
    const std::vector<float> queries = RandomFloats(rng_, 70 * kHeadDim, 2);
    for (const size_t count : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 17u, 64u, 70u}) {
      for (const size_t last :
           {size_t{70}, size_t{96}, size_t{kAttentionPart}, kAttentionPart + size_t{3}, kKeyMax}) {
        for (const size_t window : {size_t{1}, size_t{40}, kKeyMax}) {
          Scene scene = {.cache = &cache, .queries = &queries, .seen = {}};
          for (size_t i = 0; i < count; ++i) {
            const size_t key_count = last - (count > 9 ? count - 1 - i : (last % 2) * (i / 3));
            scene.seen.push_back({key_count - std::min(key_count, window), key_count});
          }
          SCOPED_TRACE(testing::Message()
                       << count << " queries, " << last << " keys, window " << window);
          ExpectSame(scene);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// What no query sees is NaN here, between the tokens of others too.
TEST_P(AttentionTables, NeverTouchWhatAQueryDoesNotSee) {
  constexpr size_t kHeadDim = 33;
  for (const KvKind kind : kKinds) {
    std::vector<float> keys = RandomFloats(rng_, 400 * kHeadDim);
    std::vector<float> values = RandomFloats(rng_, 400 * kHeadDim);
    const auto poison = [&](size_t key, float value) {
      std::fill_n(keys.begin() + static_cast<std::ptrdiff_t>(key * kHeadDim), kHeadDim, value);
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(key * kHeadDim), kHeadDim, value);
    };
    for (const size_t key : {0u, 9u, 300u, 399u}) poison(key, key == 300 ? kInfinity : kNan);
    const Cache cache(kind, kHeadDim, keys, values);
    const std::vector<float> queries = RandomFloats(rng_, 9 * kHeadDim, 2);
    Scene scene = {.cache = &cache, .queries = &queries, .seen = {}};
    for (const Seen seen : {Seen{1, 9},
                            {10, 300},
                            {10, 33},
                            {301, 399},
                            {299, 300},
                            {301, 302},
                            {10, 257},
                            {10, 256},
                            {10, 11}}) {
      scene.seen.push_back(seen);
    }
    const std::vector<float> out = AttendWhole(table(), scene);
    EXPECT_TRUE(AllFinite(out));
    ExpectSame(scene);
    scene.seen[4] = {300, 301};
    scene.seen[8] = {0, 20};
    ExpectSame(scene);  // and those that see one get what scalar gives
  }
}

// Weights that underflow, and values whose products do: zeros of both signs.
TEST_P(AttentionTables, GiveTheScalarBitsWhereNumbersEnd) {
  constexpr size_t kHeadDim = 32;
  std::vector<float> keys = RandomFloats(rng_, 300 * kHeadDim, 30);
  std::vector<float> values = RandomFloats(rng_, 300 * kHeadDim, 1e-38f);
  for (size_t i = 0; i < values.size(); i += 5) values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  keys[3] = kInfinity;
  const Cache cache(KvKind::kF32, kHeadDim, keys, values);
  const std::vector<float> queries = RandomFloats(rng_, 8 * kHeadDim, 3);
  Scene scene = {.cache = &cache, .queries = &queries, .seen = {}};
  for (size_t i = 0; i < 8; ++i) scene.seen.push_back({i % 3, 293 + i});
  ExpectSame(scene);
}

// More parts than are merged together, some that saw no key, maxima so far apart that exponentials
// underflow.
TEST_P(AttentionTables, GiveTheScalarBitsForEveryNumberOfParts) {
  constexpr size_t kHeadCount = 2;
  for (const size_t head_dim : {17u, 128u}) {
    for (const size_t count : {0u, 1u, 2u, 15u, 16u, 17u, 18u, 33u, 34u, 70u}) {
      const std::vector<float> maxima = RandomFloats(rng_, kHeadCount * count, 60);
      const std::vector<float> outs = RandomFloats(rng_, kHeadCount * count * head_dim);
      std::vector<AttentionState> states;
      for (size_t i = 0; i < maxima.size(); ++i) {
        const bool empty = i % 5 == 1 || i == 6;
        states.push_back({maxima[i], empty ? 0.0f : 1 + static_cast<float>(i)});
      }
      for (size_t head = 0; head < std::min(kHeadCount, states.size()); ++head) {
        const AttentionParts parts = {.states = &states[head],
                                      .state_stride = kHeadCount,
                                      .outs = &outs[head * head_dim],
                                      .out_stride = kHeadCount * head_dim,
                                      .count = count};
        std::vector<float> expected(head_dim, -1);
        std::vector<float> actual(head_dim, -2);
        kScalarKernels.merge_attention(parts, head_dim, expected.data());
        table().merge_attention(parts, head_dim, actual.data());
        EXPECT_TRUE(SameBits(expected, actual)) << count << " parts, head " << head;
      }
    }
  }
}

TEST_P(AttentionTables, ToF16GivesTheScalarBits) {
  std::vector<float> x = RandomFloats(rng_, 2001);
  for (size_t i = 0; i + 1 < x.size(); i += 2) {
    x[i] = std::bit_cast<float>(static_cast<uint32_t>(rng_()));  // every exponent, halves too
    if (i % 4 == 0) x[i] = tensor::F32FromF16(static_cast<uint16_t>(rng_())) * (1 + 0x1p-11f);
  }
  std::vector<uint16_t> expected(x.size());
  std::vector<uint16_t> actual(x.size());
  for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{17}, x.size()}) {
    kScalarKernels.to_f16(x.data(), count, expected.data());
    table().to_f16(x.data(), count, actual.data());
    for (size_t i = 0; i < count; ++i) {
      const float value = tensor::F32FromF16(expected[i]);
      if (std::isnan(value) && std::isnan(tensor::F32FromF16(actual[i]))) continue;
      ASSERT_EQ(expected[i], actual[i]) << x[i];
    }
  }
}

}  // namespace
}  // namespace smoe::kernels
