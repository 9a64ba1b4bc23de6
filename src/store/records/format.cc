#include "store/records/format.h"

#include <algorithm>
#include <optional>

namespace smoe::store::records {

namespace {

Status CheckDimension(const char* field, uint32_t value, uint32_t group_size) {
  if (value != 0 && value % group_size == 0) return Ok();
  return Invalid("{} is {}, expected a multiple of group_size {} above 0", field, value,
                 group_size);
}

// nullopt: beyond 64 bits.
std::optional<ProjBytes> BytesOf(uint32_t n, uint32_t k, uint32_t group_size) {
  const auto values = CheckedMul(n, k);
  if (!values) return std::nullopt;
  return ProjBytes{*values / 2, *values / group_size};
}

}  // namespace

const char* ProjName(Proj proj) {
  constexpr const char* kNames[kProjCount] = {"gate", "up", "down"};
  return kNames[ProjIndex(proj)];
}

uint64_t ExpertRecordSpec::payload_bytes() const {
  uint64_t bytes = 0;
  for (const ProjPlace& place : projs) bytes += place.bytes.packed + place.bytes.scale;
  return bytes;
}

Result<ExpertRecordSpec> ExpertRecordSpec::Create(uint32_t inter, uint32_t hidden,
                                                  uint32_t group_size, uint32_t sub_align) {
  if (group_size < 2 || group_size > kGroupSizeMax || group_size % 2 != 0) {
    return Invalid("group_size is {}, expected an even number from 2 to {}", group_size,
                   kGroupSizeMax);
  }
  if (!IsPowerOfTwo(sub_align) || sub_align > kSubAlignMax) {
    return Invalid("sub_align is {}, expected a power of two up to {}", sub_align, kSubAlignMax);
  }
  SMOE_TRY(CheckDimension("inter", inter, group_size));
  SMOE_TRY(CheckDimension("hidden", hidden, group_size));
  ExpertRecordSpec spec{inter, hidden, group_size, sub_align, {}, 0};
  uint64_t cursor = RoundUp(kHeaderBytes, sub_align);
  for (const Proj proj : kProjs) {
    const bool is_down = proj == Proj::kDown;
    ProjPlace& place = spec.projs[ProjIndex(proj)];
    place.n = is_down ? hidden : inter;
    place.k = is_down ? inter : hidden;
    const auto bytes = BytesOf(place.n, place.k, group_size);
    // The bound keeps every sum below far from overflow.
    if (!bytes || bytes->packed > kRecordBytesMax || bytes->scale > kRecordBytesMax) {
      return Invalid("inter {} by hidden {}: a record is larger than {} bytes, the largest read",
                     inter, hidden, kRecordBytesMax);
    }
    place.bytes = *bytes;
    place.packed_offset = cursor;
    place.scale_offset = RoundUp(cursor + bytes->packed, sub_align);
    cursor = RoundUp(place.scale_offset + bytes->scale, sub_align);
  }
  spec.raw_bytes = cursor;
  if (spec.raw_bytes > kRecordBytesMax) {
    return Invalid("inter {} by hidden {}: a record has {} bytes, the largest read has {}", inter,
                   hidden, spec.raw_bytes, kRecordBytesMax);
  }
  return spec;
}

}  // namespace smoe::store::records
