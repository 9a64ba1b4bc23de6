// model/kv_cache.h: keys and values of all sequences, in pages from one pool.
//
// A page holds kKvPageTokens tokens, layer after layer, in a layer head after head, as
// kernels/kv_page.h says. A sequence owns a table of pages, grows page by page and gives all back
// when it goes. The order of arithmetic never depends on which pages a sequence got, and what lies
// behind its last token is never looked at: a page keeps what its last owner wrote.
//
//   pool:     [page][page][page]...            model/page_pool.h says who uses which
//   sequence: page 7, page 3, ...              token t lies in page t / kKvPageTokens
//
// What a sequence computed can be kept: a later one that begins with the same tokens adopts the
// pages instead of computing them. Full pages are shared; of the page in which the two part the
// common tokens are copied. A row's numbers depend on its own sequence alone (model/model.h), so
// adopted keys and values have the bits that computing would give. Kept pages that nobody uses are
// taken for new ones, the least recently used first; pages in use never are.
//
// Threads: one owner reserves, truncates, keeps, adopts; rows may be read and written from any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "kernels/kernels.h"
#include "model/page_pool.h"

namespace smoe::model {

struct KvShape {
  uint32_t layer_count = 0;
  uint32_t kv_width = 0;         // elements of one token's keys: num_key_value_heads * head_dim
  uint32_t key_value_heads = 1;  // must divide kv_width
  kernels::KvKind kind = kernels::KvKind::kF32;
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
  // Forgets tokens from `count` on and returns whole pages. Requires that none of the tokens that
  // it forgets are kept (checked).
  void Truncate(size_t count);

  // `tokens`: this sequence's from the first one on, those of token_count() and more. What others
  // have kept of those that follow is taken over, as far as it goes: token_count() grows. The page
  // in which they part is copied, unless no page is left for that.
  // Cost: no allocation; a page is copied at most.
  void Adopt(std::span<const uint32_t> tokens);
  // Keeps the full pages. `tokens`: as for Adopt, at least token_count() of them (checked).
  // Cost: no allocation; nothing while no further page is full.
  void Keep(std::span<const uint32_t> tokens);
  // Keeps all pages and gives them back; the sequence is empty and of no cache afterwards.
  void Retire(std::span<const uint32_t> tokens);

  // Stores one token's keys and values of one layer, [kv_width] each, in the cache's kind.
  // Requires position inside the room.
  void Write(const kernels::KernelTable& kernels, uint32_t layer, size_t position,
             const float* keys, const float* values);
  // What was stored, one element of [kv_width]; slow.
  float KeyAt(uint32_t layer, size_t position, uint32_t element) const;
  float ValueAt(uint32_t layer, size_t position, uint32_t element) const;

  // Page `index` of the sequence, all layers: for files. Requires a page that it has (checked), and
  // for writing, one that is not kept (checked).
  Bytes PageBytes(size_t index) const;
  MutableBytes PageBytes(size_t index);

  // For kernels, see kernels::AttentionJob: the pages of a layer, and where in each a head begins.
  std::span<const std::byte* const> Pages(uint32_t layer) const;
  size_t HeadOffset(uint32_t head) const;
  kernels::KvKind kind() const;

 private:
  friend class KvCache;
  std::byte* HeadAt(uint32_t layer, size_t position, uint32_t head) const;
  void PutPage(size_t index, uint32_t page);
  void DropPagesFrom(size_t page_count);
  uint32_t LastKept() const;
  void KeepPage(std::span<const uint32_t> tokens);
  void CopyPage(const PagePool::Found& found);

  KvCache* cache_ = nullptr;
  size_t token_count_ = 0;
  size_t page_count_ = 0;
  size_t kept_count_ = 0;  // of the pages, the first ones; they never change
  size_t page_capacity_ = 0;
  std::vector<uint32_t> numbers_;  // [page_capacity]
  std::vector<std::byte*> pages_;  // [layer][page_capacity], where each page's part of it begins
};

class KvCache {
 public:
  // Room for `token_max` tokens over all sequences, rounded up to pages. Each sequence rounds up to
  // whole pages for itself, so n sequences can lose (n - 1) * (kKvPageTokens - 1) tokens of it.
  // Errors: kExhausted if the memory cannot be had, with bytes per token.
  // Requires: layer_count, kv_width and key_value_heads above 0 (checked).
  static Result<std::unique_ptr<KvCache>> Create(const KvShape& shape, size_t token_max);

  // Cost: allocates a page table for the whole pool, 8 bytes for each page and layer.
  KvSequence NewSequence();

  const KvShape& shape() const { return shape_; }
  const PagePool& pool() const { return pool_; }
  // Tokens that one further sequence could hold now.
  size_t free_token_count() const { return pool_.unused_count() * kKvPageTokens; }

 private:
  friend class KvSequence;
  KvShape shape_;
  AlignedBuffer memory_;
  PagePool pool_;
};

// Bytes that one token takes over all layers.
uint64_t KvBytesPerToken(const KvShape& shape);
// Bytes of a page, and one without what it holds of the tokens from `row` on (zeros).
// Requires `page` of that size (checked).
uint64_t KvPageBytes(const KvShape& shape);
void ClearTokensFrom(const KvShape& shape, size_t row, MutableBytes page);

}  // namespace smoe::model
