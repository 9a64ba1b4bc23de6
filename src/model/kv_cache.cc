#include "model/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "tensor/dtype.h"

namespace smoe::model {

namespace {

// Keys and values of one head in one page.
size_t HeadBytes(const KvShape& shape) {
  return kKvPageTokens * kernels::KvTokenBytes(shape.kind, shape.head_dim());
}

size_t LayerBytes(const KvShape& shape) { return HeadBytes(shape) * shape.key_value_heads; }

}  // namespace

KvSequence::KvSequence(KvSequence&& other) noexcept { *this = std::move(other); }

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  DropPagesFrom(0);
  cache_ = std::exchange(other.cache_, nullptr);
  token_count_ = std::exchange(other.token_count_, 0);
  page_count_ = std::exchange(other.page_count_, 0);
  kept_count_ = std::exchange(other.kept_count_, 0);
  page_capacity_ = std::exchange(other.page_capacity_, 0);
  numbers_ = std::move(other.numbers_);
  pages_ = std::move(other.pages_);
  return *this;
}

KvSequence::~KvSequence() { DropPagesFrom(0); }

void KvSequence::PutPage(size_t index, uint32_t page) {
  const KvShape& shape = cache_->shape_;
  numbers_[index] = page;
  std::byte* const data = cache_->memory_.data() + page * KvPageBytes(shape);
  for (uint32_t layer = 0; layer < shape.layer_count; ++layer) {
    pages_[layer * page_capacity_ + index] = data + layer * LayerBytes(shape);
  }
}

Status KvSequence::Reserve(size_t count) {
  SMOE_CHECK(cache_ != nullptr);
  PagePool& pool = cache_->pool_;
  const auto wanted = static_cast<size_t>(CeilDiv(count, kKvPageTokens));
  if (wanted > page_count_ && wanted - page_count_ > pool.unused_count()) {
    return Exhausted(
        "KV cache: {} tokens asked for one sequence, {} fit now; raise --context or wait for "
        "another request to end",
        count, (page_count_ + pool.unused_count()) * kKvPageTokens);
  }
  while (page_count_ < wanted) PutPage(page_count_++, *pool.Take());
  return Ok();
}

void KvSequence::SetTokenCount(size_t count) {
  SMOE_CHECK(count <= token_room());
  token_count_ = count;
}

void KvSequence::Truncate(size_t count) {
  SMOE_CHECK(count >= kept_count_ * kKvPageTokens);
  token_count_ = std::min(token_count_, count);
  DropPagesFrom(static_cast<size_t>(CeilDiv(count, kKvPageTokens)));
}

void KvSequence::DropPagesFrom(size_t page_count) {
  while (page_count_ > page_count) cache_->pool_.GiveBack(numbers_[--page_count_]);
  kept_count_ = std::min(kept_count_, page_count_);
}

uint32_t KvSequence::LastKept() const {
  return kept_count_ == 0 ? PagePool::kRoot : numbers_[kept_count_ - 1];
}

void KvSequence::Adopt(std::span<const uint32_t> tokens) {
  PagePool& pool = cache_->pool_;
  for (;;) {
    const size_t first = kept_count_ * kKvPageTokens;
    if (first >= tokens.size()) return;
    const size_t count = std::min(kKvPageTokens, tokens.size() - first);
    const std::optional<PagePool::Found> found =
        pool.Find(LastKept(), tokens.subspan(first, count));
    if (!found) return;
    if (found->token_count < kKvPageTokens) {
      if (first + found->token_count > token_count_) CopyPage(*found);
      return;
    }
    pool.Use(found->page);
    if (kept_count_ < page_count_) {
      pool.GiveBack(numbers_[kept_count_]);
    } else {
      ++page_count_;
    }
    PutPage(kept_count_++, found->page);
    token_count_ = std::max(token_count_, kept_count_ * kKvPageTokens);
  }
}

// The page behind the kept ones becomes a copy of the one that was found.
void KvSequence::CopyPage(const PagePool::Found& found) {
  PagePool& pool = cache_->pool_;
  pool.Use(found.page);  // or it might be the one that is taken
  if (kept_count_ == page_count_) {
    if (const std::optional<uint32_t> page = pool.Take()) PutPage(page_count_++, *page);
  }
  if (kept_count_ < page_count_) {
    const size_t bytes = KvPageBytes(cache_->shape_);
    std::byte* const memory = cache_->memory_.data();
    std::memcpy(memory + numbers_[kept_count_] * bytes, memory + found.page * bytes, bytes);
    token_count_ = kept_count_ * kKvPageTokens + found.token_count;
  }
  pool.GiveBack(found.page);
}

// Keeps the first page that is not yet, of which these are the tokens.
void KvSequence::KeepPage(std::span<const uint32_t> tokens) {
  PagePool& pool = cache_->pool_;
  const uint32_t own = numbers_[kept_count_];
  const uint32_t kept = pool.Keep(LastKept(), own, tokens);
  if (kept != own) {
    pool.Use(kept);
    pool.GiveBack(own);
    PutPage(kept_count_, kept);
  }
  ++kept_count_;
}

void KvSequence::Keep(std::span<const uint32_t> tokens) {
  SMOE_CHECK(tokens.size() >= token_count_);
  while ((kept_count_ + 1) * kKvPageTokens <= token_count_) {
    KeepPage(tokens.subspan(kept_count_ * kKvPageTokens, kKvPageTokens));
  }
}

void KvSequence::Retire(std::span<const uint32_t> tokens) {
  Keep(tokens);
  const size_t first = kept_count_ * kKvPageTokens;
  if (first < token_count_) KeepPage(tokens.subspan(first, token_count_ - first));
  *this = KvSequence();
}

std::byte* KvSequence::HeadAt(uint32_t layer, size_t position, uint32_t head) const {
  SMOE_DCHECK(position < token_room());
  return pages_[layer * page_capacity_ + position / kKvPageTokens] + HeadOffset(head);
}

void KvSequence::Write(const kernels::KernelTable& kernels, uint32_t layer, size_t position,
                       const float* keys, const float* values) {
  const KvShape& shape = cache_->shape_;
  const size_t head_dim = shape.head_dim();
  const size_t row = position % kKvPageTokens;
  for (uint32_t head = 0; head < shape.key_value_heads; ++head) {
    std::byte* const at = HeadAt(layer, position, head);
    kernels::WriteKvToken(kernels, shape.kind, keys + head * head_dim, values + head * head_dim,
                          head_dim, row, at);
  }
}

float KvSequence::KeyAt(uint32_t layer, size_t position, uint32_t element) const {
  const uint32_t head_dim = cache_->shape_.head_dim();
  return kernels::KvKeyAt(kind(), HeadAt(layer, position, element / head_dim), head_dim,
                          position % kKvPageTokens, element % head_dim);
}

float KvSequence::ValueAt(uint32_t layer, size_t position, uint32_t element) const {
  const uint32_t head_dim = cache_->shape_.head_dim();
  return kernels::KvValueAt(kind(), HeadAt(layer, position, element / head_dim), head_dim,
                            position % kKvPageTokens, element % head_dim);
}

Bytes KvSequence::PageBytes(size_t index) const {
  SMOE_CHECK(index < page_count_);
  const uint64_t bytes = KvPageBytes(cache_->shape_);
  return cache_->memory_.bytes().subspan(numbers_[index] * bytes, bytes);
}

MutableBytes KvSequence::PageBytes(size_t index) {
  SMOE_CHECK(index >= kept_count_ && index < page_count_);
  const uint64_t bytes = KvPageBytes(cache_->shape_);
  return cache_->memory_.bytes().subspan(numbers_[index] * bytes, bytes);
}

std::span<const std::byte* const> KvSequence::Pages(uint32_t layer) const {
  return {pages_.data() + layer * page_capacity_, page_count_};
}

size_t KvSequence::HeadOffset(uint32_t head) const { return head * HeadBytes(cache_->shape_); }

kernels::KvKind KvSequence::kind() const { return cache_->shape_.kind; }

Result<std::unique_ptr<KvCache>> KvCache::Create(const KvShape& shape, size_t token_max) {
  SMOE_CHECK(shape.layer_count > 0 && shape.kv_width > 0 && shape.key_value_heads > 0);
  SMOE_CHECK(shape.kv_width % shape.key_value_heads == 0);
  const uint64_t page_count = CeilDiv(token_max, kKvPageTokens);
  const std::optional<uint64_t> bytes = CheckedMul(page_count, KvPageBytes(shape));
  if (!bytes || *bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
      page_count >= PagePool::kRoot) {
    return Exhausted("KV cache: {} tokens of {} bytes each do not fit any memory", token_max,
                     KvBytesPerToken(shape));
  }
  auto cache = std::make_unique<KvCache>();
  Result<AlignedBuffer> memory = AlignedBuffer::Create(*bytes, "KV cache");
  if (!memory) {
    return While(fmt::format("{} tokens of {} bytes each", token_max, KvBytesPerToken(shape)),
                 std::move(memory));
  }
  cache->shape_ = shape;
  cache->memory_ = std::move(*memory);
  cache->pool_ = PagePool(static_cast<size_t>(page_count));
  return cache;
}

KvSequence KvCache::NewSequence() {
  KvSequence sequence;
  sequence.cache_ = this;
  sequence.page_capacity_ = pool_.page_count();
  sequence.numbers_.resize(sequence.page_capacity_);
  sequence.pages_.resize(sequence.page_capacity_ * shape_.layer_count);
  return sequence;
}

uint64_t KvBytesPerToken(const KvShape& shape) {
  return uint64_t{kernels::KvTokenBytes(shape.kind, shape.head_dim())} * shape.key_value_heads *
         shape.layer_count;
}

uint64_t KvPageBytes(const KvShape& shape) { return LayerBytes(shape) * shape.layer_count; }

void ClearTokensFrom(const KvShape& shape, size_t row, MutableBytes page) {
  SMOE_CHECK(page.size() == KvPageBytes(shape));
  for (size_t head = 0; head < shape.layer_count * shape.key_value_heads; ++head) {
    kernels::ClearKvTokens(shape.kind, shape.head_dim(), row,
                           page.data() + head * HeadBytes(shape));
  }
}

}  // namespace smoe::model
