#include "model/page_pool.h"

#include <algorithm>

#include "base/check.h"

namespace smoe::model {

PagePool::PagePool(size_t page_count)
    : nodes_(page_count + 1), tokens_(page_count * kKvPageTokens), unused_count_(page_count) {
  SMOE_CHECK(page_count < kRoot);
  for (uint32_t page = 0; page <= page_count; ++page) {
    Node& node = nodes_[page];
    node.first_child = no_page();
    node.sibling = no_page();
    node.next = page == page_count ? 0 : page + 1;
    node.previous = page == 0 ? no_page() : page - 1;
  }
}

void PagePool::Enqueue(uint32_t page, uint32_t behind) {
  Node& node = nodes_[page];
  node.previous = behind;
  node.next = nodes_[behind].next;
  nodes_[node.next].previous = page;
  nodes_[behind].next = page;
  ++unused_count_;
  if (node.token_count != 0) ++kept_unused_count_;
}

void PagePool::Dequeue(uint32_t page) {
  Node& node = nodes_[page];
  nodes_[node.previous].next = node.next;
  nodes_[node.next].previous = node.previous;
  --unused_count_;
  if (node.token_count != 0) --kept_unused_count_;
}

std::optional<uint32_t> PagePool::Take() {
  if (unused_count_ == 0) return std::nullopt;
  const uint32_t page = nodes_[no_page()].next;
  Dequeue(page);
  if (nodes_[page].token_count != 0) {
    Forget(page);
    ++forgotten_count_;
  }
  nodes_[page].use_count = 1;
  touched_count_ = std::max<size_t>(touched_count_, page + size_t{1});
  return page;
}

void PagePool::Use(uint32_t page) {
  Node& node = nodes_[page];
  if (node.use_count++ == 0) Dequeue(page);
}

void PagePool::GiveBack(uint32_t page) {
  Node& node = nodes_[page];
  SMOE_CHECK(node.use_count > 0);
  if (--node.use_count > 0) return;
  const uint32_t ends = no_page();
  // What was written last is likely to be in a near cache, and its memory is there already.
  Enqueue(page, node.token_count == 0 ? ends : nodes_[ends].previous);
}

size_t PagePool::CommonCount(uint32_t page, std::span<const uint32_t> tokens) const {
  const size_t count = std::min<size_t>(nodes_[page].token_count, tokens.size());
  const uint32_t* const own = tokens_.data() + page * kKvPageTokens;
  return static_cast<size_t>(std::mismatch(own, own + count, tokens.begin()).first - own);
}

std::optional<PagePool::Found> PagePool::Find(uint32_t before,
                                              std::span<const uint32_t> tokens) const {
  Found best;
  for (uint32_t page = NodeOf(before).first_child; page != no_page(); page = nodes_[page].sibling) {
    const size_t count = CommonCount(page, tokens);
    if (count > best.token_count) best = {page, count};
  }
  if (best.token_count == 0) return std::nullopt;
  return best;
}

uint32_t PagePool::Keep(uint32_t before, uint32_t page, std::span<const uint32_t> tokens) {
  SMOE_CHECK(!tokens.empty() && tokens.size() <= kKvPageTokens);
  SMOE_CHECK(before == kRoot || nodes_[before].token_count == kKvPageTokens);
  Node& node = nodes_[page];
  SMOE_CHECK(node.use_count > 0 && node.token_count == 0);
  uint32_t next = no_page();
  for (uint32_t other = NodeOf(before).first_child; other != no_page(); other = next) {
    next = nodes_[other].sibling;
    const size_t common = CommonCount(other, tokens);
    if (common == tokens.size()) return other;
    // A leaf that ends where this one goes on.
    if (common < nodes_[other].token_count || nodes_[other].use_count != 0) continue;
    Dequeue(other);
    Forget(other);
    Enqueue(other, no_page());
  }
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + page * kKvPageTokens);
  node.token_count = static_cast<uint32_t>(tokens.size());
  node.before = before;
  node.sibling = NodeOf(before).first_child;
  NodeOf(before).first_child = page;
  return page;
}

// Takes a leaf out of the tree.
void PagePool::Forget(uint32_t page) {
  Node& node = nodes_[page];
  SMOE_CHECK(node.first_child == no_page());
  uint32_t* link = &NodeOf(node.before).first_child;
  while (*link != page) link = &nodes_[*link].sibling;
  *link = node.sibling;
  node.sibling = no_page();
  node.token_count = 0;
}

}  // namespace smoe::model
