// convert/trunk.h: everything of a checkpoint that is not a routed expert, as one safetensors
// image, streamed.
//
// With format source, tensors are copied as they are; the order and the header's bytes are then
// those of the original converter's files: by element type (the wider and floating ones first, as
// the safetensors library orders them), then by name. With another format the matrices of
// checkpoint/trunk_format.h are quantised on the way, a few rows at a time:
//
//   bf16  NAME.weight BF16
//   int8  NAME.weight I8 [rows][cols], NAME.weight_int8_scale F32 [rows][cols / 64, rounded up]
//   q4    NAME.weight U8 [rows][cols / 2], NAME.weight_q4_scale F16 [rows][cols / 32]
//
// Scales lie right behind their codes, among the codes, so that a matrix is read once. The bytes do
// not depend on anything but the source. Source: docs/formats/vault.md, "A quantised trunk".
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/trunk_format.h"
#include "convert/progress.h"
#include "tensor/quantise.h"

namespace smoe::convert {

// What quantising has cost, by checkpoint::TrunkPart; nothing where the source's bits were kept.
using TrunkErrors = std::array<tensor::QuantisationError, checkpoint::kTrunkPartCount>;

// One tensor of the image, or codes and scales, which follow each other.
struct TrunkEntry {
  checkpoint::TensorInfo source;    // of what is copied as it is
  bool is_converted = false;        // then all of what follows is set
  bool has_codes = false;           // copied, with codes of int8 or q4: the matrix is set
  checkpoint::LinearWeight matrix;  // borrows names from the files
  tensor::WeightFormat format = tensor::WeightFormat::kF32;
  checkpoint::TrunkPart part = checkpoint::TrunkPart::kDense;
};

struct TrunkPlan {
  checkpoint::TrunkFormats formats;
  std::vector<TrunkEntry> entries;  // in the order of the image
  checkpoint::SafetensorsLayout layout;
};

// Names, types and shapes, and the scales of NVFP4 matrices. Biases of experts belong to the trunk:
// a blob has no room for them. The plan borrows from `checkpoint`.
// Errors: kInvalid from LayOutSafetensors; kCorrupt by tensor: a quantised matrix that could not be
//         loaded.
Result<TrunkPlan> PlanTrunk(const checkpoint::Checkpoint& checkpoint,
                            const checkpoint::TrunkFormats& formats);

// The same of any model's trunk, which may lie among experts: their names tell them.
Result<TrunkPlan> PlanTrunk(const checkpoint::TensorFiles& files,
                            const checkpoint::ModelConfig& config,
                            const checkpoint::TrunkFacts& facts,
                            const checkpoint::TrunkFormats& formats);

// Hands the image to `sink` in order, in pieces of at most 4 MiB, and sets `errors`.
// Errors: of the reads and of the sink; kCorrupt, kUnsupported by tensor for weights that are not
//         finite, or that a format cannot hold; kCorrupt for copied int8 or q4 that no model could
//         be loaded from.
// Memory: a few rows of one matrix in f32, and the scales of one matrix.
using TrunkSink = std::function<Status(Bytes piece)>;
Status StreamTrunk(const checkpoint::TensorFiles& files, const TrunkPlan& plan,
                   const TrunkSink& sink, Progress& progress, TrunkErrors* errors);

// "int8: attention (error 0.63 %), head (error 0.6 %)", with the parts that were quantised.
std::string TrunkFormatText(const checkpoint::TrunkFormats& formats, const TrunkErrors& errors);

// {"format": "int8", "parts": {"head": {"weights": ..., "rmse": ..., "relative_rmse": ...}}}, with
// the parts that were quantised.
Json TrunkFormatJson(const checkpoint::TrunkFormats& formats, const TrunkErrors& errors);

}  // namespace smoe::convert
