// checkpoint/trunk_format.h: in which format the matrices of a trunk are kept, part by part.
//
//   part        matrices
//   embedding   embed_tokens; where the head is tied they are one matrix, which counts as head
//   head        lm_head
//   attention   q_proj, k_proj, v_proj
//   output      o_proj
//   dense       gate_proj, up_proj, down_proj of dense layers and of shared experts
//
// Everything else (routers, gates of shared experts, norms, biases) is no part of this: it stays
// f32 in memory and as it is in files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/linear_weight.h"
#include "tensor/weights.h"

namespace smoe::checkpoint {

enum class TrunkFormat : uint8_t {
  kSource,  // as the file has it; FP8 and NVFP4, with which no kernel computes in rows, become f32
  kBf16,    // rounded half to even
  kInt8,    // tensor/quantise_int8.h
  kQ4,      // SMOE-Q4 in groups of kQ4Group, by the mse quantiser
};
const char* TrunkFormatName(TrunkFormat format);  // "source", "bf16", "int8", "q4"

enum class TrunkPart : uint8_t { kEmbedding, kHead, kAttention, kOutput, kDense };
inline constexpr size_t kTrunkPartCount = 5;
const char* TrunkPartName(TrunkPart part);  // "embedding", "head", ...

struct TrunkFormats {
  std::array<TrunkFormat, kTrunkPartCount> of = {};  // by TrunkPart; all kSource

  static TrunkFormats All(TrunkFormat format);
  TrunkFormat Of(TrunkPart part) const { return of[static_cast<size_t>(part)]; }
  bool operator==(const TrunkFormats& other) const = default;
};

// "int8", or "int8,head=bf16": a format for all parts, then parts that have their own.
// Errors: kInvalid naming `option`, the word that is none, and the words that are.
Result<TrunkFormats> ParseTrunkFormats(std::string_view option, std::string_view text);

// The same text back, "int8,head=bf16"; the format that most parts have comes first.
std::string TrunkFormatsText(const TrunkFormats& formats);

// The part that the matrix with this stem belongs to: "PREFIXembed_tokens", "lm_head",
// "PREFIXlayers.3.self_attn.q_proj". nullopt: to none, and to none if it lies in a layer that is
// not run (`layer_count`) or in another tower.
std::optional<TrunkPart> FindTrunkPart(std::string_view stem, std::string_view prefix,
                                       uint32_t layer_count);

// What a matrix is kept as. One that is already as narrow as asked, or narrower, stays as it is:
// coding it once more could only lose. q4 needs a multiple of kQ4Group columns; other matrices
// become int8. Requires two dimensions, and IsFloat elements where the weight is kFloat.
tensor::WeightFormat ChooseFormat(TrunkFormat asked, const LinearWeight& weight);

// f32, f16 or bf16 of plain elements; nullopt for any other type.
std::optional<tensor::WeightFormat> FormatOf(tensor::DType dtype);

}  // namespace smoe::checkpoint
