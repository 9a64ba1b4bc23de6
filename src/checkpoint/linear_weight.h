// checkpoint/linear_weight.h: a matrix of the trunk, plain or quantised, as floats.
//
// Checkpoints with NVFP4 or FP8 experts often have attention, the head, dense layers and shared
// experts in the same format. The kind is told by the names of the tensors below one stem
// ("model.layers.0.self_attn.q_proj") and their element types:
//
//   kind                     codes                 scales                     global scale
//   float                    weight                -                          -
//   FP8 E4M3                 weight                weight_scale_inv, or       -
//                                                  weight_scale
//   NVFP4, ModelOpt          weight U8             weight_scale F8_E4M3       weight_scale_2
//   NVFP4, compressed-       weight_packed U8      weight_scale F8_E4M3       1 /
//   weight_global_scale
//     tensors
//
// FP8:   weight = code * scale. Scales are floats: one for the matrix, one for each row, or one for
//        each block of the config's weight_block_size; blocks at the edges are partial.
// NVFP4: weight = (E2M1(code) * E4M3(scale)) * global scale, in f32 in this order. Codes are [rows]
//        [cols / 2], the even column in the low nibble; scales [rows][cols / 16].
// Scales of activations and of a quantised KV cache (input_scale, k_scale, ...) do not change a
// weight: they are passed over.
// Source: docs/formats/records.md, "What the bytes mean"; ModelOpt 0.33 and compressed-tensors
// 0.15.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace smoe::checkpoint {

enum class LinearKind : uint8_t { kFloat, kFp8, kNvfp4 };

// A tensor and its name, both borrowed from the TensorFiles.
struct NamedTensor {
  const std::string* name = nullptr;
  const TensorInfo* info = nullptr;
};

struct LinearWeight {
  LinearKind kind = LinearKind::kFloat;
  NamedTensor codes;
  NamedTensor scales;        // not of kFloat
  NamedTensor global_scale;  // kNvfp4 only
  bool global_is_inverse = false;
  tensor::Shape shape;      // of the weight, in elements: [rows, cols] unless it is kFloat
  uint64_t block_rows = 1;  // that share a scale
  uint64_t block_cols = 1;
};

// Names, types and shapes only. The other tensors below the stem are not looked at.
// Errors: kCorrupt by tensor: no weight, scales missing or of another shape, names of both NVFP4
//         kinds below one stem; kUnsupported: a type that is no weight.
Result<LinearWeight> FindLinear(const TensorFiles& files, std::string_view stem,
                                const ModelConfig& config);

// Rows [first_row, ...) of a weight that is kFp8 or kNvfp4, as many as `out` has, in f32.
// Errors: kCorrupt by tensor and element for a scale that is NaN, infinite or negative, or a
//         global scale that is 0; kIo.
// Cost:   reads codes and scales of these rows; the working memory is that of the rows' codes.
Status ReadLinearRows(const TensorFiles& files, const LinearWeight& weight, uint64_t first_row,
                      std::span<float> out);

// What ReadLinearRows would refuse in any row. Cost: reads the scales, in pieces.
Status CheckScales(const TensorFiles& files, const LinearWeight& weight);

// Does a tensor of this name hold a matrix that FindLinear finds? "lm_head.weight" and
// "lm_head.weight_packed" do. `stem` gets what precedes the last component.
bool IsLinearName(std::string_view name, std::string_view* stem);

// Is it a scale or anything else that only accompanies a quantised weight? The last component
// decides.
bool IsQuantisationName(std::string_view name);

// Is it one of those that no weight depends on?
bool IsActivationScaleName(std::string_view name);

// Bytes that a trunk tensor takes once loaded: quantised weights become f32.
uint64_t LoadedBytes(std::string_view name, const TensorInfo& info);

}  // namespace smoe::checkpoint
