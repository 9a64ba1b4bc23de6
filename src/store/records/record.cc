#include "store/records/record.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace smoe::store::records {

namespace {

constexpr uint32_t kFlagsMask = (1u << kProjCount) - 1;

constexpr uint64_t kSigns = 0x8080808080808080u;
constexpr uint64_t kOnes = 0x0101010101010101u;

// Eight codes in a word. A lane is bad if its sign is set, or if all bits below are: then adding
// one carries into the sign. Lanes never carry into each other.
constexpr uint64_t BadLanes(uint64_t word) { return (word | ((word & ~kSigns) + kOnes)) & kSigns; }

Status CheckField(const char* field, uint32_t found, uint32_t expected) {
  if (found == expected) return Ok();
  return Corrupt("header field {} is {}, expected {}", field, found, expected);
}

bool IsUsable(float scale) { return std::isfinite(scale) && scale > 0; }

bool HasInputScale(const ExpertRecordHeader& header, size_t index) {
  return (header.input_scale_flags >> index & 1) != 0;
}

Status CheckScalars(const ExpertRecordHeader& header) {
  for (const Proj proj : kProjs) {
    const size_t i = ProjIndex(proj);
    const float scale2 = header.scale2[i];
    if (!IsUsable(scale2)) {
      return Corrupt("{}: header field scale2 is {}, expected a finite number above 0",
                     ProjName(proj), scale2);
    }
    const float input_scale = header.input_scale[i];
    const bool is_there = HasInputScale(header, i);
    if (is_there ? IsUsable(input_scale) : input_scale == 0) continue;
    return Corrupt("{}: header field input_scale is {}, expected {}", ProjName(proj), input_scale,
                   is_there ? "a finite number above 0" : "0, since input_scale_flags has no bit");
  }
  return Ok();
}

void PlaceBuffer(Bytes from, uint64_t rows, PartsOrder order, MutableBytes to) {
  SMOE_CHECK(from.size() == to.size());
  if (order == PartsOrder::kCheckpoint) {
    TransposeBytes(from, rows, from.size() / rows, to);
  } else {
    std::memcpy(to.data(), from.data(), from.size());
  }
}

// Calls `visit(begin, end)` for each stretch of `record` that no buffer and no header covers.
template <class Visit>
void ForEachGap(const ExpertRecordSpec& spec, uint64_t record_bytes, Visit visit) {
  uint64_t cursor = kHeaderBytes;
  for (const ProjPlace& place : spec.projs) {
    visit(cursor, place.packed_offset);
    visit(place.packed_offset + place.bytes.packed, place.scale_offset);
    cursor = place.scale_offset + place.bytes.scale;
  }
  visit(cursor, record_bytes);
}

}  // namespace

uint64_t FindBadScaleCode(Bytes scale) {
  uint64_t bad = 0;
  uint64_t offset = 0;
  for (; offset + sizeof(uint64_t) <= scale.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, scale.data() + offset, sizeof(word));
    bad |= BadLanes(word);
  }
  uint64_t tail = 0;
  if (offset < scale.size()) std::memcpy(&tail, scale.data() + offset, scale.size() - offset);
  if ((bad | BadLanes(tail)) == 0) return scale.size();
  const auto at = std::find_if(scale.begin(), scale.end(), [](std::byte code) {
    return std::to_integer<uint32_t>(code) >= 0x7F;
  });
  return static_cast<uint64_t>(at - scale.begin());
}

Status CheckIdentity(const ExpertRecordSpec& spec, ExpertKey key, Bytes record) {
  const auto header = LoadStruct<ExpertRecordHeader>(record);
  if (header.magic == 0 && AllZero(record.first(kHeaderBytes))) {
    return Corrupt("header is all zero, expected magic 0x{:08x}: it was never written",
                   kRecordMagic);
  }
  if (header.magic != kRecordMagic) {
    return Corrupt("header field magic is 0x{:08x}, expected 0x{:08x}", uint32_t{header.magic},
                   kRecordMagic);
  }
  SMOE_TRY(CheckField("version", header.version, ExpertRecordHeader::kVersion));
  SMOE_TRY(CheckField("layer", header.layer, key.layer));
  SMOE_TRY(CheckField("expert", header.expert, key.expert));
  SMOE_TRY(CheckField("inter", header.inter, spec.inter));
  SMOE_TRY(CheckField("hidden", header.hidden, spec.hidden));
  SMOE_TRY(CheckField("group_size", header.group_size, spec.group_size));
  if ((header.input_scale_flags & ~kFlagsMask) != 0) {
    return Corrupt("header field input_scale_flags is 0x{:x}, expected no bit above 2",
                   uint32_t{header.input_scale_flags});
  }
  const Bytes reserved = record.subspan(kHeaderBytesUsed, kHeaderBytes - kHeaderBytesUsed);
  if (AllZero(reserved)) return Ok();
  const auto at = std::find_if(reserved.begin(), reserved.end(),
                               [](std::byte value) { return value != std::byte{0}; });
  return Corrupt("header byte {} is 0x{:02x}, expected 0 (reserved)",
                 kHeaderBytesUsed + static_cast<uint64_t>(at - reserved.begin()),
                 std::to_integer<uint32_t>(*at));
}

Status CheckContent(const ExpertRecordSpec& spec, Bytes record) {
  SMOE_TRY(CheckScalars(LoadStruct<ExpertRecordHeader>(record)));
  for (const Proj proj : kProjs) {
    const ProjPlace& place = spec.Place(proj);
    const Bytes scale = record.subspan(place.scale_offset, place.bytes.scale);
    const uint64_t index = FindBadScaleCode(scale);
    if (index == scale.size()) continue;
    const auto code = std::to_integer<uint8_t>(scale[index]);
    const bool is_nan = (code & 0x7F) == 0x7F;
    return Corrupt(
        "{}: block scale {} (row {}, group {}) at byte {} of the record is 0x{:02x}, {}; "
        "expected 0x00 to 0x7e",
        ProjName(proj), index, index % place.n, index / place.n, place.scale_offset + index, code,
        is_nan ? "NaN" : "negative");
  }
  return Ok();
}

Status PackRecord(const ExpertRecordSpec& spec, ExpertKey key, const ExpertParts& parts,
                  PartsOrder order, MutableBytes record) {
  SMOE_CHECK(record.size() >= spec.raw_bytes);
  ExpertRecordHeader header = {};
  header.magic = kRecordMagic;
  header.version = ExpertRecordHeader::kVersion;
  header.layer = key.layer;
  header.expert = key.expert;
  header.inter = spec.inter;
  header.hidden = spec.hidden;
  header.group_size = spec.group_size;
  for (const Proj proj : kProjs) {
    const size_t i = ProjIndex(proj);
    const ProjParts& part = parts.projs[i];
    const ProjPlace& place = spec.projs[i];
    header.scale2[i] = part.scale2;
    header.input_scale[i] = part.input_scale.value_or(0);
    if (part.input_scale) header.input_scale_flags |= 1u << i;
    PlaceBuffer(part.packed, place.n, order,
                record.subspan(place.packed_offset, place.bytes.packed));
    PlaceBuffer(part.scale, place.n, order, record.subspan(place.scale_offset, place.bytes.scale));
  }
  StoreStruct(record, 0, header);
  ForEachGap(spec, record.size(), [&](uint64_t begin, uint64_t end) {
    std::fill(record.begin() + static_cast<ptrdiff_t>(begin),
              record.begin() + static_cast<ptrdiff_t>(end), std::byte{0});
  });
  return CheckContent(spec, record);
}

Result<ExpertParts> UnpackRecord(const ExpertRecordSpec& spec, ExpertKey key, Bytes record) {
  SMOE_CHECK(record.size() >= spec.raw_bytes);
  SMOE_TRY(CheckIdentity(spec, key, record));
  SMOE_TRY(CheckContent(spec, record));
  const auto header = LoadStruct<ExpertRecordHeader>(record);
  ExpertParts parts;
  for (size_t i = 0; i < kProjCount; ++i) {
    const ProjPlace& place = spec.projs[i];
    parts.projs[i].packed = record.subspan(place.packed_offset, place.bytes.packed);
    parts.projs[i].scale = record.subspan(place.scale_offset, place.bytes.scale);
    parts.projs[i].scale2 = header.scale2[i];
    if (HasInputScale(header, i)) parts.projs[i].input_scale = header.input_scale[i];
  }
  return parts;
}

bool PaddingIsZero(const ExpertRecordSpec& spec, Bytes record) {
  bool is_zero = true;
  ForEachGap(spec, record.size(), [&](uint64_t begin, uint64_t end) {
    is_zero = is_zero && AllZero(record.subspan(begin, end - begin));
  });
  return is_zero;
}

tensor::ExpertWeights ViewRecord(const ExpertRecordSpec& spec, Bytes record) {
  const auto header = LoadStruct<ExpertRecordHeader>(record);
  const auto view_of = [&](Proj proj) {
    const ProjPlace& place = spec.Place(proj);
    tensor::WeightView view;
    view.format = tensor::WeightFormat::kNvfp4;
    view.rows = place.n;
    view.cols = place.k;
    view.data = record.subspan(place.packed_offset, place.bytes.packed);
    view.scales = record.subspan(place.scale_offset, place.bytes.scale);
    view.group_size = spec.group_size;
    view.scale2 = header.scale2[ProjIndex(proj)];
    return view;
  };
  return {view_of(Proj::kGate), view_of(Proj::kUp), view_of(Proj::kDown)};
}

}  // namespace smoe::store::records
