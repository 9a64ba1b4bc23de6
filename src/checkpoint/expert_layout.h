// checkpoint/expert_layout.h: where a published checkpoint keeps its experts.
//
// Recognises every published naming by the tensors alone, and turns them into one answer: which
// bytes of which tensor are gate, up and down of (layer, expert).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace smoe::checkpoint {

enum class Proj : uint8_t { kGate = 0, kUp = 1, kDown = 2 };
inline constexpr int kProjCount = 3;
const char* ProjName(Proj proj);  // "gate", "up", "down"

// How the elements of one projection of one expert lie inside their tensor. The matrix is
// [rows][cols]; element (r, c) is the tensor's element first + r * row_stride + c * col_stride.
struct MatrixSlice {
  std::string tensor_name;
  uint64_t first = 0;  // in elements
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint64_t row_stride = 0;
  uint64_t col_stride = 0;
  bool contiguous() const { return col_stride == 1 && row_stride == cols; }
};

// Extra tensors that give the elements their value: none for float tensors.
enum class ExpertEncoding : uint8_t {
  kFloat,     // bf16, f16, f32: the element is the weight
  kFp8Block,  // F8_E4M3 with F32 NAME_scale_inv, one per block_size x block_size block
  kMxfp4,     // NAME_blocks and NAME_scales (E8M0), 32 to a scale
  kNvfp4,     // ModelOpt or compressed-tensors names; not converted by the Sculptor's Q4/Q2
};

struct ExpertLayer {
  uint32_t layer_index = 0;  // absolute transformer layer
  uint32_t expert_count = 0;
  bool is_mtp = false;  // beyond num_hidden_layers: multi-token prediction
};

class ExpertLayout {
 public:
  // Errors: kUnsupported if no expert naming is recognised (the message lists a few tensor names
  //         and the namings we know); kCorrupt if an expert or projection is missing, if two
  //         namings hold the same experts, or if shapes disagree. All are named.
  static Result<ExpertLayout> Detect(const TensorFiles& files, const ModelConfig& config);

  const char* naming() const;  // "per-expert gate_proj", "fused gate_up_proj [E,2I,H]", ...
  ExpertEncoding encoding() const { return encoding_; }
  const std::vector<ExpertLayer>& layers() const { return layers_; }
  uint32_t hidden_size() const { return hidden_size_; }  // from the tensors
  uint32_t intermediate_size() const { return intermediate_size_; }
  bool has_biases() const { return has_biases_; }  // gpt_oss: experts carry biases

  // Requires an expert that layers() has.
  MatrixSlice Slice(uint32_t layer_index, uint32_t expert_index, Proj proj) const;

  // True for the tensors that hold routed experts (scales and biases included): all others are
  // trunk.
  bool IsExpertTensor(std::string_view name) const;

 private:
  friend class ExpertLayoutBuilder;
  ExpertEncoding encoding_ = ExpertEncoding::kFloat;
  std::vector<ExpertLayer> layers_;
  uint32_t hidden_size_ = 0;
  uint32_t intermediate_size_ = 0;
  bool has_biases_ = false;
};

// Reads one projection as f32 [rows][cols], whatever the naming and encoding.
// Cost: one read per contiguous run; `out` is the only large memory besides one staging buffer.
// Errors: kIo; kCorrupt for NaN or infinity in the source, naming tensor and index
//         (allow_non_finite passes them on).
Status ReadExpertMatrix(const TensorFiles& files, const ExpertLayout& layout, uint32_t layer_index,
                        uint32_t expert_index, Proj proj, bool allow_non_finite,
                        std::span<float> out);

}  // namespace smoe::checkpoint
