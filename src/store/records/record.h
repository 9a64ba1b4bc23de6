// store/records/record.h: putting one expert into a record, taking it out, and checking both.
//
// In a record every matrix is TRANSPOSED: packed is [k / 2][n] and scale [k / group_size][n], a
// plain byte transpose of a checkpoint's [n][k / 2] and [n][k / group_size]. A byte still holds two
// neighbouring k of one output row, low nibble first.
//
//   W[n][k] = (E2M1(nibble of packed[(k / 2) n_count + n]) * E4M3(scale[(k / 16) n_count + n]))
//             * scale2, in f32, in this order
//
// Source: docs/formats/records.md.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/result.h"
#include "store/records/format.h"
#include "tensor/weights.h"

namespace smoe::store::records {

// One projection, outside of a record or inside.
struct ProjParts {
  Bytes packed;
  Bytes scale;
  float scale2 = 0;
  std::optional<float> input_scale;
};
struct ExpertParts {
  ProjParts projs[kProjCount];  // gate, up, down
};

// The order of the bytes in ProjParts.
enum class PartsOrder : uint8_t {
  kRecord,      // [k / 2][n], as in a record
  kCheckpoint,  // [n][k / 2], as in a checkpoint
};

// to[c][r] = from[r][c]. Requires both to have rows * cols bytes.
// Cost: 16 x 16 bytes at a time; a quarter to a half of the speed of a copy.
void TransposeBytes(Bytes from, uint64_t rows, uint64_t cols, MutableBytes to);

// Fills `record`, raw_bytes or longer, with header, buffers and zeros to its end.
// Requires parts of exactly the sizes of `spec`.
// Errors: kCorrupt, as CheckContent: no record is made that a reader would refuse.
Status PackRecord(const ExpertRecordSpec& spec, ExpertKey key, const ExpertParts& parts,
                  PartsOrder order, MutableBytes record);

// The parts of a record, in record order, as views into it. Checks identity and content.
// Requires record.size() >= spec.raw_bytes.
Result<ExpertParts> UnpackRecord(const ExpertRecordSpec& spec, ExpertKey key, Bytes record);

// Is this the record of `key`? Compares magic, version, layer, expert, dims, flags and reserved.
// Requires record.size() >= kHeaderBytes.
// Errors: kCorrupt naming field, found, expected (the caller adds file and record).
Status CheckIdentity(const ExpertRecordSpec& spec, ExpertKey key, Bytes record);

// Are the numbers in it usable? scale2 and input_scale finite and above 0 (input_scale 0 where its
// flag is off), no scale code that is NaN or negative.
// Requires record.size() >= spec.raw_bytes.
// Errors: kCorrupt naming projection, index, found, expected. Cost: 8 scales a step.
Status CheckContent(const ExpertRecordSpec& spec, Bytes record);

// True if every byte that belongs to no buffer and not to the header is zero.
bool PaddingIsZero(const ExpertRecordSpec& spec, Bytes record);

// Index of the first E4M3 code that is NaN (0x7F, 0xFF) or has its sign set; the size if none is.
uint64_t FindBadScaleCode(Bytes scale);

// The three matrices of a record whose content has been checked.
tensor::ExpertWeights ViewRecord(const ExpertRecordSpec& spec, Bytes record);

}  // namespace smoe::store::records
