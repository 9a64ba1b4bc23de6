// model/page_pool.h: pages by number: who uses them, which tokens they hold, which goes next.
//
// Nothing here knows keys or values. A page is in use, by one sequence or by several, or waits. It
// is kept, which means that it can be found by its tokens, or it is not; kept pages never change.
//
// Kept pages form a tree. A page's place in it is the run of ALL tokens from the beginning of its
// sequence to its own end, compared one by one and not by a hash, so no page of another text can
// ever be found. Inner pages are full; a leaf may hold fewer tokens.
//
//   root -- [You are a ...] -+- [... helper. Hi,] -- [there!]
//                            +- [... helper. Tell] - [me a story]
//
// Pages that nobody uses wait in one queue and are taken from its front: those not kept, then the
// kept ones in the order in which they were given back. Sequences give back from their end, and
// whoever uses a page uses all pages before it. So the least recently used goes first, and none
// goes before those that continue it.
//
// Memory: 160 bytes for each page, taken at the start. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace smoe::model {

inline constexpr size_t kKvPageTokens = kernels::kAttentionPage;

class PagePool {
 public:
  // Stands for the page before a sequence's first.
  static constexpr uint32_t kRoot = UINT32_MAX;

  PagePool() = default;
  // Pages 0 to page_count - 1, none in use. Requires page_count below kRoot (checked).
  explicit PagePool(size_t page_count);

  // A page for one user; the page that waited longest is forgotten for it. nullopt: all are in use.
  std::optional<uint32_t> Take();
  void Use(uint32_t page);  // by one more
  void GiveBack(uint32_t page);

  struct Found {
    uint32_t page = 0;
    size_t token_count = 0;  // the beginning that both have, at least 1
  };
  // Of the pages that continue `before`, the one that has most tokens in common with the beginning
  // of `tokens`. Cost: a comparison with each of those pages.
  std::optional<Found> Find(uint32_t before, std::span<const uint32_t> tokens) const;

  // From now on `page` is found behind `before` by these tokens. If a page that is kept there holds
  // all of them, nothing changes, and that one is returned instead of `page`. Pages that hold less
  // of the same are no longer kept. Requires 1 to kKvPageTokens tokens, both pages in use, `before`
  // kept and full, `page` not kept (checked).
  uint32_t Keep(uint32_t before, uint32_t page, std::span<const uint32_t> tokens);

  size_t page_count() const { return nodes_.empty() ? 0 : nodes_.size() - 1; }
  size_t unused_count() const { return unused_count_; }            // could be taken
  size_t kept_unused_count() const { return kept_unused_count_; }  // of those, kept
  uint64_t forgotten_count() const { return forgotten_count_; }    // kept pages that were taken
  // No page of this number or above was ever taken.
  size_t touched_count() const { return touched_count_; }

 private:
  struct Node {
    uint32_t use_count = 0;
    uint32_t token_count = 0;  // 0: not kept
    uint32_t before = 0;       // the page that it continues
    uint32_t first_child = 0;  // no_page(): none
    uint32_t sibling = 0;      // the next that continues the same page; no_page(): none
    uint32_t next = 0;         // in the queue; the last node is both ends of it
    uint32_t previous = 0;
  };

  uint32_t no_page() const { return static_cast<uint32_t>(page_count()); }
  Node& NodeOf(uint32_t page) { return nodes_[page == kRoot ? no_page() : page]; }
  const Node& NodeOf(uint32_t page) const { return nodes_[page == kRoot ? no_page() : page]; }
  size_t CommonCount(uint32_t page, std::span<const uint32_t> tokens) const;
  void Enqueue(uint32_t page, uint32_t behind);
  void Dequeue(uint32_t page);
  void Forget(uint32_t page);

  std::vector<Node> nodes_;       // the last one: root of the tree, ends of the queue
  std::vector<uint32_t> tokens_;  // [page][kKvPageTokens]
  size_t unused_count_ = 0;
  size_t kept_unused_count_ = 0;
  uint64_t forgotten_count_ = 0;
  size_t touched_count_ = 0;
};

}  // namespace smoe::model
