// model/kv_cache.h: keys and values of all sequences, in pages from one pool.
//
// A page holds kKvPageTokens tokens of ONE layer: keys [tokens][kv_width], then values. A sequence
// owns, per layer, a table of pages; it grows page by page in all layers at once and gives all back
// when it goes. The order of arithmetic never depends on which pages a sequence got.
//
//   pool:     [page][page][page]...            free pages form a stack
//   sequence: layer 0: page 7, page 3, ...     token t lies in page t / kKvPageTokens
//             layer 1: page 0, page 9, ...
//
// Threads: one owner reserves and truncates; rows may be read and written from any thread.
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
  uint32_t kv_width = 0;         // floats of one token's keys: num_key_value_heads * head_dim
  uint32_t key_value_heads = 1;  // must divide kv_width
  uint32_t head_dim() const { return kv_width / key_value_heads; }
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
  size_t token_room() const { return page_count_ * kKvPageTokens; }  // written or not

  // Makes room for `count` tokens in total.
  // Errors: kExhausted naming tokens asked and tokens that fit; the sequence is unchanged then.
  // Cost:   no allocation: pages come from the pool, the page table was sized at the start.
  Status Reserve(size_t count);
  // The caller has written tokens up to `count`. Requires room.
  void SetTokenCount(size_t count);
  // Forgets tokens from `count` on and returns whole pages.
  void Truncate(size_t count);

  // Rows of one token of one layer, [kv_width] each. Requires position inside the room.
  float* Key(uint32_t layer, size_t position);
  float* Value(uint32_t layer, size_t position);

  // Page bases of a layer for kernels, already at the head: entry p points at [head_dim] floats of
  // token p * kKvPageTokens; the next token is kv_width floats further.
  std::span<const float* const> KeyPages(uint32_t layer, uint32_t head = 0) const;
  std::span<const float* const> ValuePages(uint32_t layer, uint32_t head = 0) const;

 private:
  friend class KvCache;
  size_t TableIndex(uint32_t layer, uint32_t head, size_t page) const;
  void DropPagesFrom(size_t page_count);

  KvCache* cache_ = nullptr;
  size_t token_count_ = 0;
  size_t page_count_ = 0;                  // per layer
  size_t page_capacity_ = 0;               // per layer and head, in the tables
  std::vector<float*> pages_;              // [layer][page_capacity]
  std::vector<const float*> key_table_;    // [layer][head][page_capacity]
  std::vector<const float*> value_table_;  // the same
};

class KvCache {
 public:
  // Room for `token_max` tokens over all sequences, rounded up to pages. Each sequence rounds up to
  // whole pages for itself, so n sequences can lose (n - 1) * (kKvPageTokens - 1) tokens of it.
  // Errors: kExhausted if the memory cannot be had, with bytes per token.
  // Requires: layer_count, kv_width and key_value_heads above 0 (checked).
  static Result<std::unique_ptr<KvCache>> Create(const KvShape& shape, size_t token_max);

  // Cost: allocates a page table for the whole pool, 16 bytes for each page, layer and head.
  KvSequence NewSequence();

  const KvShape& shape() const { return shape_; }
  size_t free_page_count() const { return free_pages_.size(); }
  // Tokens that one further sequence could hold now.
  size_t free_token_count() const;

 private:
  friend class KvSequence;
  KvShape shape_;
  AlignedBuffer memory_;
  size_t page_count_ = 0;
  std::vector<float*> free_pages_;
};

// Bytes that one token takes over all layers.
uint64_t KvBytesPerToken(const KvShape& shape);

}  // namespace smoe::model
