// model/kv_cache.h: keys and values of all sequences, in pages from one pool.
//
// A page holds kKvPageTokens tokens of ONE layer: keys [tokens][kv_heads * head_dim], then values.
// A sequence owns, per layer, a table of pages; it grows page by page and gives all back when it
// goes. The order of arithmetic never depends on which pages a sequence got.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/result.h"

namespace smoe::model {

inline constexpr size_t kKvPageTokens = 32;

struct KvShape {
  uint32_t layer_count = 0;
  uint32_t kv_width = 0;  // num_key_value_heads * head_dim
};

class KvCache;

// The keys and values of one sequence. Move-only; returns its pages when it goes, so it must go
// before its cache.
class KvSequence {
 public:
  KvSequence() = default;
  KvSequence(KvSequence&& other) noexcept;
  KvSequence& operator=(KvSequence&& other) noexcept;
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;
  ~KvSequence();

  size_t token_count() const { return token_count_; }
  // Makes room for `count` tokens in total. kExhausted naming tokens asked and tokens that fit; the
  // sequence is unchanged then.
  Status Reserve(size_t count);
  // The caller has written tokens up to `count`. Requires room.
  void SetTokenCount(size_t count);
  // Forgets tokens from `count` on and returns whole pages.
  void Truncate(size_t count);

  // Rows of one token of one layer, [kv_width] each. Requires position inside the room.
  float* Key(uint32_t layer, size_t position);
  float* Value(uint32_t layer, size_t position);
  // Page bases of a layer, for kernels: page p holds tokens [p * kKvPageTokens, ...).
  std::span<const float* const> KeyPages(uint32_t layer) const;
  std::span<const float* const> ValuePages(uint32_t layer) const;

 private:
  friend class KvCache;
  KvCache* cache_ = nullptr;
  size_t token_count_ = 0;
  std::vector<std::vector<const float*>> key_pages_;    // [layer][page]
  std::vector<std::vector<const float*>> value_pages_;  // [layer][page]
};

class KvCache {
 public:
  // Room for `token_max` tokens over all sequences, rounded up to pages.
  // Errors: kExhausted if the memory cannot be had, with bytes per token.
  static Result<std::unique_ptr<KvCache>> Create(const KvShape& shape, size_t token_max);

  KvSequence NewSequence();
  const KvShape& shape() const { return shape_; }
  size_t free_page_count() const { return free_pages_.size(); }

 private:
  friend class KvSequence;
  KvShape shape_;
  AlignedBuffer memory_;
  std::vector<float*> free_pages_;
};

// Bytes that one token takes over all layers.
uint64_t KvBytesPerToken(const KvShape& shape);

}  // namespace smoe::model
