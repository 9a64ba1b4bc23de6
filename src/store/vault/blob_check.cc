#include "store/vault/blob_check.h"

#include <cstring>

namespace smoe::store::vault {

namespace {

constexpr const char* kProjNames[kTensorsPerExpert] = {"gate", "up", "down"};
constexpr uint64_t kScaleBytes = 2;

// Four f16 in a word. A lane is bad if its sign is set, or if its exponent is all ones: then adding
// one to the exponent carries into the sign. Lanes never carry into each other.
constexpr uint64_t kSigns = 0x8000800080008000u;
constexpr uint64_t kExponentOne = 0x0400040004000400u;

uint64_t BadLanes(uint64_t word) { return (word | ((word & ~kSigns) + kExponentOne)) & kSigns; }

const char* ScaleKind(uint16_t bits) {
  if ((bits & 0x7FFF) > 0x7C00) return "NaN";
  if ((bits & 0x7FFF) == 0x7C00) return (bits & 0x8000) != 0 ? "minus infinity" : "infinity";
  return "a negative number";
}

}  // namespace

uint64_t FindBadScale(Bytes scales) {
  const uint64_t count = scales.size() / kScaleBytes;
  uint64_t bad = 0;
  uint64_t offset = 0;
  for (; offset + sizeof(uint64_t) <= scales.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, scales.data() + offset, sizeof(word));
    bad |= BadLanes(word);
  }
  uint64_t tail = 0;
  if (offset < scales.size()) std::memcpy(&tail, scales.data() + offset, scales.size() - offset);
  if ((bad | BadLanes(tail)) == 0) return count;
  for (uint64_t i = 0; i < count; ++i) {
    if (BadLanes(LoadStruct<uint16_t>(scales, i * kScaleBytes)) != 0) return i;
  }
  return count;
}

Status CheckBlob(const Vault& vault, const ExpertRecord& record, Bytes blob) {
  const Bytes raw = blob.first(record.raw_size);
  if (vault.annex) {
    const auto index = static_cast<size_t>(&record - vault.records.data());
    const uint64_t found = Checksum(raw);
    if (const uint64_t expected = vault.annex->expert_checksums[index]; found != expected) {
      return Corrupt("{}: layer {}, expert {} at byte {}: checksum is {:016x}, expected {:016x}",
                     vault.path, record.id.layer_index, record.id.expert_index, record.byte_offset,
                     found, expected);
    }
  }
  for (uint32_t j = 0; j < kTensorsPerExpert; ++j) {
    const TensorPlace& place = record.tensors[j];
    const Bytes scales = raw.subspan(place.scales_offset, place.scales_size);
    const uint64_t index = FindBadScale(scales);
    if (index == scales.size() / kScaleBytes) continue;
    const auto bits = LoadStruct<uint16_t>(scales, index * kScaleBytes);
    return Corrupt(
        "{}: layer {}, expert {}, {}: scale {} at byte {} is {} (0x{:04x}), expected a finite "
        "number of at least 0",
        vault.path, record.id.layer_index, record.id.expert_index, kProjNames[j], index,
        record.byte_offset + place.scales_offset + index * kScaleBytes, ScaleKind(bits), bits);
  }
  return Ok();
}

}  // namespace smoe::store::vault
