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
  return 2 * kKvPageTokens * shape.head_dim() * kernels::KvElementBytes(shape.kind);
}

size_t PageBytes(const KvShape& shape) { return HeadBytes(shape) * shape.key_value_heads; }

// `count` elements of kBytes each into every stride-th place.
template <size_t kBytes>
void Scatter(const void* from, size_t count, size_t stride, std::byte* to) {
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * stride * kBytes, source + i * kBytes, kBytes);
  }
}

// One token of one head: a column of the keys, a row of the values.
void WriteFloats(const float* keys, const float* values, size_t head_dim, size_t row,
                 std::byte* head) {
  constexpr size_t kBytes = sizeof(float);
  Scatter<kBytes>(keys, head_dim, kKvPageTokens, head + row * kBytes);
  std::memcpy(head + (kKvPageTokens + row) * head_dim * kBytes, values, head_dim * kBytes);
}

void WriteHalves(const kernels::KernelTable& kernels, const float* keys, const float* values,
                 size_t head_dim, size_t row, std::byte* head) {
  constexpr size_t kBytes = sizeof(uint16_t);
  constexpr size_t kStretch = 128;
  uint16_t bits[kStretch];
  std::byte* const value_row = head + (kKvPageTokens + row) * head_dim * kBytes;
  for (size_t first = 0; first < head_dim; first += kStretch) {
    const size_t count = std::min(kStretch, head_dim - first);
    kernels.to_f16(keys + first, count, bits);
    Scatter<kBytes>(bits, count, kKvPageTokens, head + (first * kKvPageTokens + row) * kBytes);
    kernels.to_f16(values + first, count, bits);
    std::memcpy(value_row + first * kBytes, bits, count * kBytes);
  }
}

float Load(kernels::KvKind kind, const std::byte* head, size_t index) {
  if (kind == kernels::KvKind::kF16) {
    uint16_t bits;
    std::memcpy(&bits, head + index * sizeof(bits), sizeof(bits));
    return tensor::F32FromF16(bits);
  }
  float value;
  std::memcpy(&value, head + index * sizeof(value), sizeof(value));
  return value;
}

}  // namespace

KvSequence::KvSequence(KvSequence&& other) noexcept { *this = std::move(other); }

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  DropPagesFrom(0);
  cache_ = std::exchange(other.cache_, nullptr);
  token_count_ = std::exchange(other.token_count_, 0);
  page_count_ = std::exchange(other.page_count_, 0);
  page_capacity_ = std::exchange(other.page_capacity_, 0);
  pages_ = std::move(other.pages_);
  return *this;
}

KvSequence::~KvSequence() { DropPagesFrom(0); }

Status KvSequence::Reserve(size_t count) {
  SMOE_CHECK(cache_ != nullptr);
  const KvShape& shape = cache_->shape_;
  const size_t wanted = static_cast<size_t>(CeilDiv(count, kKvPageTokens));
  if (wanted <= page_count_) return Ok();
  const size_t free_per_layer = cache_->free_pages_.size() / shape.layer_count;
  if (wanted - page_count_ > free_per_layer) {
    return Exhausted(
        "KV cache: {} tokens asked for one sequence, {} fit now; raise --context or wait for "
        "another request to end",
        count, (page_count_ + free_per_layer) * kKvPageTokens);
  }
  for (size_t page = page_count_; page < wanted; ++page) {
    for (uint32_t layer = 0; layer < shape.layer_count; ++layer) {
      pages_[layer * page_capacity_ + page] = cache_->free_pages_.back();
      cache_->free_pages_.pop_back();
    }
  }
  page_count_ = wanted;
  return Ok();
}

void KvSequence::SetTokenCount(size_t count) {
  SMOE_CHECK(count <= token_room());
  token_count_ = count;
}

void KvSequence::Truncate(size_t count) {
  token_count_ = std::min(token_count_, count);
  DropPagesFrom(static_cast<size_t>(CeilDiv(count, kKvPageTokens)));
}

void KvSequence::DropPagesFrom(size_t page_count) {
  if (cache_ == nullptr) return;
  while (page_count_ > page_count) {
    --page_count_;
    for (uint32_t layer = 0; layer < cache_->shape_.layer_count; ++layer) {
      cache_->free_pages_.push_back(pages_[layer * page_capacity_ + page_count_]);
    }
  }
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
    const size_t first = head * head_dim;
    if (shape.kind == kernels::KvKind::kF16) {
      WriteHalves(kernels, keys + first, values + first, head_dim, row, at);
    } else {
      WriteFloats(keys + first, values + first, head_dim, row, at);
    }
  }
}

float KvSequence::KeyAt(uint32_t layer, size_t position, uint32_t element) const {
  const uint32_t head_dim = cache_->shape_.head_dim();
  return Load(kind(), HeadAt(layer, position, element / head_dim),
              element % head_dim * kKvPageTokens + position % kKvPageTokens);
}

float KvSequence::ValueAt(uint32_t layer, size_t position, uint32_t element) const {
  const uint32_t head_dim = cache_->shape_.head_dim();
  const size_t row = kKvPageTokens + position % kKvPageTokens;
  return Load(kind(), HeadAt(layer, position, element / head_dim),
              row * head_dim + element % head_dim);
}

std::span<const std::byte* const> KvSequence::Pages(uint32_t layer) const {
  return {pages_.data() + layer * page_capacity_, page_count_};
}

size_t KvSequence::HeadOffset(uint32_t head) const { return head * HeadBytes(cache_->shape_); }

kernels::KvKind KvSequence::kind() const { return cache_->shape_.kind; }

Result<std::unique_ptr<KvCache>> KvCache::Create(const KvShape& shape, size_t token_max) {
  SMOE_CHECK(shape.layer_count > 0 && shape.kv_width > 0 && shape.key_value_heads > 0);
  SMOE_CHECK(shape.kv_width % shape.key_value_heads == 0);
  const std::optional<uint64_t> page_count =
      CheckedMul(CeilDiv(token_max, kKvPageTokens), shape.layer_count);
  const std::optional<uint64_t> bytes =
      page_count ? CheckedMul(*page_count, PageBytes(shape)) : std::nullopt;
  if (!bytes || *bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
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
  cache->page_count_ = static_cast<size_t>(*page_count);
  cache->free_pages_.reserve(cache->page_count_);
  // Last page first: the stack then gives them out in ascending order.
  for (size_t page = cache->page_count_; page-- > 0;) {
    cache->free_pages_.push_back(cache->memory_.data() + page * PageBytes(shape));
  }
  return cache;
}

KvSequence KvCache::NewSequence() {
  KvSequence sequence;
  sequence.cache_ = this;
  sequence.page_capacity_ = page_count_ / shape_.layer_count;
  sequence.pages_.resize(sequence.page_capacity_ * shape_.layer_count);
  return sequence;
}

size_t KvCache::free_token_count() const {
  return free_pages_.size() / shape_.layer_count * kKvPageTokens;
}

uint64_t KvBytesPerToken(const KvShape& shape) {
  return uint64_t{2} * kernels::KvElementBytes(shape.kind) * shape.layer_count * shape.kv_width;
}

}  // namespace smoe::model
