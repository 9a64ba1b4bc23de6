#include "model/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace smoe::model {

KvSequence::KvSequence(KvSequence&& other) noexcept { *this = std::move(other); }

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  DropPagesFrom(0);
  cache_ = std::exchange(other.cache_, nullptr);
  token_count_ = std::exchange(other.token_count_, 0);
  page_count_ = std::exchange(other.page_count_, 0);
  page_capacity_ = std::exchange(other.page_capacity_, 0);
  pages_ = std::move(other.pages_);
  key_table_ = std::move(other.key_table_);
  value_table_ = std::move(other.value_table_);
  return *this;
}

KvSequence::~KvSequence() { DropPagesFrom(0); }

size_t KvSequence::TableIndex(uint32_t layer, uint32_t head, size_t page) const {
  return (size_t{layer} * cache_->shape_.key_value_heads + head) * page_capacity_ + page;
}

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
      float* const keys = cache_->free_pages_.back();
      cache_->free_pages_.pop_back();
      pages_[layer * page_capacity_ + page] = keys;
      const float* const values = keys + kKvPageTokens * shape.kv_width;
      for (uint32_t head = 0; head < shape.key_value_heads; ++head) {
        const size_t index = TableIndex(layer, head, page);
        key_table_[index] = keys + size_t{head} * shape.head_dim();
        value_table_[index] = values + size_t{head} * shape.head_dim();
      }
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

float* KvSequence::Key(uint32_t layer, size_t position) {
  SMOE_DCHECK(position < token_room());
  const size_t row = position % kKvPageTokens;
  return pages_[layer * page_capacity_ + position / kKvPageTokens] + row * cache_->shape_.kv_width;
}

float* KvSequence::Value(uint32_t layer, size_t position) {
  return Key(layer, position) + kKvPageTokens * cache_->shape_.kv_width;
}

std::span<const float* const> KvSequence::KeyPages(uint32_t layer, uint32_t head) const {
  return {key_table_.data() + TableIndex(layer, head, 0), page_count_};
}

std::span<const float* const> KvSequence::ValuePages(uint32_t layer, uint32_t head) const {
  return {value_table_.data() + TableIndex(layer, head, 0), page_count_};
}

Result<std::unique_ptr<KvCache>> KvCache::Create(const KvShape& shape, size_t token_max) {
  SMOE_CHECK(shape.layer_count > 0 && shape.kv_width > 0 && shape.key_value_heads > 0);
  SMOE_CHECK(shape.kv_width % shape.key_value_heads == 0);
  const uint64_t page_floats = uint64_t{2} * kKvPageTokens * shape.kv_width;
  const std::optional<uint64_t> page_count =
      CheckedMul(CeilDiv(token_max, kKvPageTokens), shape.layer_count);
  const std::optional<uint64_t> bytes =
      page_count ? CheckedMul(*page_count, page_floats * sizeof(float)) : std::nullopt;
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
  float* const base = cache->memory_.As<float>().data();
  // Last page first: the stack then gives them out in ascending order.
  for (size_t page = cache->page_count_; page-- > 0;) {
    cache->free_pages_.push_back(base + page * page_floats);
  }
  return cache;
}

KvSequence KvCache::NewSequence() {
  KvSequence sequence;
  sequence.cache_ = this;
  sequence.page_capacity_ = page_count_ / shape_.layer_count;
  const size_t entries = sequence.page_capacity_ * shape_.layer_count;
  sequence.pages_.resize(entries);
  sequence.key_table_.resize(entries * shape_.key_value_heads);
  sequence.value_table_.resize(entries * shape_.key_value_heads);
  return sequence;
}

size_t KvCache::free_token_count() const {
  return free_pages_.size() / shape_.layer_count * kKvPageTokens;
}

uint64_t KvBytesPerToken(const KvShape& shape) {
  return uint64_t{2} * sizeof(float) * shape.layer_count * shape.kv_width;
}

}  // namespace smoe::model
