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
//   NVFP4, compressed-       weight_packed U8      weight_scale F8_E4M3       1 / weight_global_
//     tensors                                                                   scale
//   int8, ours               weight I8             weight_int8_scale F32      -
//   q4, ours                 weight U8             weight_q4_scale F16        -
//
// FP8:   weight = code * scale. Scales are floats: one for the matrix, one for each row, or one for
//        each block of the config's weight_block_size; blocks at the edges are partial.
// NVFP4: weight = (E2M1(code) * E4M3(scale)) * global scale, in f32 in this order. Codes are [rows]
//        [cols / 2], the even column in the low nibble; scales [rows][cols / 16].
// int8:  weight = code * scale, codes [rows][cols] from -127 to 127; scales
//        [rows][ceil(cols / 64)]: one for 64 neighbouring columns of a row, the last one for those
//        that are left.
// q4:    weight = (code - 7.5) / 7.5 * scale, codes [rows][cols / 2], the even column in the low
//        nibble; scales [rows][cols / 32]. cols is a multiple of 32.
// Scales of activations and of a quantised KV cache (input_scale, k_scale, ...) do not change a
// weight: they are passed over.
// Source: docs/formats/records.md, "What the bytes mean"; docs/formats/vault.md, "A quantised
// trunk"; ModelOpt 0.33 and compressed-tensors 0.15.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace smoe::checkpoint {

enum class LinearKind : uint8_t { kFloat, kFp8, kNvfp4, kInt8, kQ4 };

// Last components of the names of what goes with our own two formats.
inline constexpr std::string_view kInt8ScaleName = "weight_int8_scale";
inline constexpr std::string_view kQ4ScaleName = "weight_q4_scale";
inline constexpr uint32_t kQ4Group = 32;  // columns of one row that share a scale

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

// Rows [first_row, ...) of a weight of any kind, as many as `out` has, in f32. A vector of kFloat
// has one row. `staging` is grown to what the rows' codes take and can be used again.
// Errors: kCorrupt by tensor and element for a scale that is NaN, infinite or negative, a global
//         scale that is 0, a code that int8 does not have; kIo.
// Cost:   reads codes and scales of these rows.
Status ReadLinearRows(const TensorFiles& files, const LinearWeight& weight, uint64_t first_row,
                      std::span<float> out, std::vector<std::byte>* staging);

// Codes and scales of rows [first_row, + row_count) of kInt8 or kQ4 as they lie in the file.
// Shapes: codes [row_count][bytes of a row's codes]; scales [row_count][groups], f32, of kQ4 f16
// Errors: as ReadLinearRows.
Status ReadLinearCodes(const TensorFiles& files, const LinearWeight& weight, uint64_t first_row,
                       MutableBytes codes, MutableBytes scales);

// What ReadLinearRows would refuse in any row.
// Cost: reads the scales in pieces, and the codes of kInt8.
Status CheckScales(const TensorFiles& files, const LinearWeight& weight);

// Does a tensor of this name hold a matrix that FindLinear finds? "lm_head.weight" and
// "lm_head.weight_packed" do. `stem` gets what precedes the last component.
bool IsLinearName(std::string_view name, std::string_view* stem);

// Is it a scale or anything else that only accompanies a quantised weight? The last component
// decides.
bool IsQuantisationName(std::string_view name);

// Is it one of those that no weight depends on?
bool IsActivationScaleName(std::string_view name);

}  // namespace smoe::checkpoint
