// store/records/format.h: identity and geometry of an expert record, bit for bit.
//
// A record holds the gate, up and down NVFP4 projections of one expert behind a fixed header. Each
// MoE layer has one file, num_experts records at one stride that the whole model shares.
// The names are those of the format's own document. Source: docs/formats/records.md.
//
// Units: sizes and offsets in bytes; inter and hidden in weights.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe::store::records {

// The order of the sub-buffers in a record and of the header's per-projection fields.
enum class Proj : uint8_t { kGate, kUp, kDown };
inline constexpr uint32_t kProjCount = 3;
inline constexpr Proj kProjs[kProjCount] = {Proj::kGate, Proj::kUp, Proj::kDown};
const char* ProjName(Proj proj);  // "gate", "up", "down"
constexpr size_t ProjIndex(Proj proj) { return static_cast<size_t>(proj); }

inline constexpr uint32_t kRecordMagic = 0x58505254;  // on disk 54 52 50 58
inline constexpr uint64_t kHeaderBytes = 256;
inline constexpr uint64_t kHeaderBytesUsed = 56;
// Weights that share a scale: what NVFP4 means, and the only size that is computed with here.
inline constexpr uint32_t kNvfp4GroupSize = 16;
inline constexpr uint32_t kSubAlignUsual = 256;
inline constexpr uint32_t kFsBlockSizeUsual = 4096;

// Limits of a reader. A record is read by one call, and Linux moves less than 2 GiB in one.
inline constexpr uint64_t kRecordBytesMax = uint64_t{1} << 30;
inline constexpr uint32_t kGroupSizeMax = 1024;
inline constexpr uint32_t kSubAlignMax = uint32_t{1} << 20;
inline constexpr uint32_t kFsBlockSizeMax = uint32_t{1} << 24;

#pragma pack(push, 1)

struct ExpertRecordHeader {
  static constexpr uint32_t kVersion = 1;

  uint32_t magic;    // kRecordMagic
  uint32_t version;  // kVersion
  uint32_t layer;    // dense: counts MoE layers only
  uint32_t expert;
  uint32_t inter;
  uint32_t hidden;
  uint32_t group_size;
  uint32_t input_scale_flags;                         // bit i: projection i has an input scale
  float scale2[kProjCount];                           // weight_scale_2: finite, above 0
  float input_scale[kProjCount];                      // 0 where absent; kept and shown, not applied
  uint8_t reserved[kHeaderBytes - kHeaderBytesUsed];  // 0
};
static_assert(sizeof(ExpertRecordHeader) == kHeaderBytes);

#pragma pack(pop)

// One expert's record. `layer` is the dense MoE layer, 0 to num_moe_layers - 1, not the model's;
// ExpertIndex::moe_layer_to_model_layer maps one to the other.
struct ExpertKey {
  uint32_t layer = 0;
  uint32_t expert = 0;
  friend bool operator==(const ExpertKey&, const ExpertKey&) = default;
};

// Dense id of a record across the model: layer * num_experts + expert.
struct ExpertRecordId {
  uint64_t value = 0;
  static constexpr ExpertRecordId Of(ExpertKey key, uint32_t num_experts) {
    return {uint64_t{key.layer} * num_experts + key.expert};
  }
  // Requires num_experts > 0, and an id that Of made with it.
  constexpr ExpertKey Key(uint32_t num_experts) const {
    return {static_cast<uint32_t>(value / num_experts), static_cast<uint32_t>(value % num_experts)};
  }
  friend bool operator==(const ExpertRecordId&, const ExpertRecordId&) = default;
};

// Bytes of the two buffers of one projection W[n][k].
struct ProjBytes {
  uint64_t packed = 0;  // two 4-bit values per byte: n k / 2
  uint64_t scale = 0;   // one byte per group_size values: n k / group_size
};

// Where the two buffers of a projection lie, from the start of the record.
struct ProjPlace {
  uint32_t n = 0;  // output rows: inter for gate and up, hidden for down
  uint32_t k = 0;  // input columns
  uint64_t packed_offset = 0;
  uint64_t scale_offset = 0;
  ProjBytes bytes;
};

// Where each buffer of a record lies. Header first, then gate, up, down, each packed, then scale;
// every offset is a multiple of sub_align; no two overlap.
struct ExpertRecordSpec {
  uint32_t inter = 0;
  uint32_t hidden = 0;
  uint32_t group_size = 0;
  uint32_t sub_align = 0;
  ProjPlace projs[kProjCount];
  uint64_t raw_bytes = 0;  // end of the last buffer, rounded up to sub_align

  const ProjPlace& Place(Proj proj) const { return projs[ProjIndex(proj)]; }
  // Bytes of all six buffers: what a record holds besides header and padding.
  uint64_t payload_bytes() const;

  // Errors: kInvalid naming field, found and expected: a dimension of 0 or that is no whole number
  //         of groups, a group_size that is odd or outside 2 to kGroupSizeMax, a sub_align that is
  //         no power of two up to kSubAlignMax, a record larger than kRecordBytesMax.
  static Result<ExpertRecordSpec> Create(uint32_t inter, uint32_t hidden, uint32_t group_size,
                                         uint32_t sub_align);
};

// The files of a store: one per MoE layer, num_experts records back to back at record_stride.
struct ExpertLayout {
  uint32_t num_moe_layers = 0;
  uint32_t num_experts = 0;
  uint64_t record_stride = 0;  // raw_bytes rounded up to fs_block_size

  uint64_t RecordOffset(uint32_t expert) const { return expert * record_stride; }
  uint64_t FileBytes() const { return num_experts * record_stride; }
};

// True for 1, 2, 4, ...
constexpr bool IsPowerOfTwo(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

}  // namespace smoe::store::records
