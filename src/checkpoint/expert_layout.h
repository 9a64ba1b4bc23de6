// checkpoint/expert_layout.h: where a published checkpoint keeps its experts.
//
// Recognises every published naming by the tensors alone, and turns them into one answer: which
// bytes of which tensor are gate, up and down of (layer, expert).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/expert_names.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace smoe::checkpoint {

enum class Proj : uint8_t { kGate = 0, kUp = 1, kDown = 2 };
inline constexpr int kProjCount = 3;
const char* ProjName(Proj proj);  // "gate", "up", "down"

// How the elements of one projection of one expert lie inside their tensor. The matrix is
// [rows][cols]; element (r, c) is the tensor's element first + r * row_stride + c * col_stride.
// Elements of kMxfp4 and kNvfp4 are nibbles, low nibble first.
struct MatrixSlice {
  std::string tensor_name;
  uint64_t first = 0;  // in elements
  uint32_t rows = 0;
  uint32_t cols = 0;
  uint64_t row_stride = 0;
  uint64_t col_stride = 0;
  bool contiguous() const { return col_stride == 1 && row_stride == cols; }
};

// Extra tensors that give the elements their value: none for float tensors. In a checkpoint that
// mixes float and FP8 experts it is kFp8Block; ReadExpertMatrix goes by each tensor's own type.
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
  // Orientation: [E, 2I, H] or [E, H, 2I] is told by the shapes of gate_up and down together, where
  // both are square by the family; gate and up columns alternate in gpt_oss only. An MTP module
  // "mtp.layers.K" becomes layer num_hidden_layers + K.
  // Errors: kUnsupported if no expert naming is recognised (the message lists a few tensor names
  //         and the namings we know), or the elements are of a type nobody here reads; kCorrupt if
  //         an expert or projection is missing, if two namings hold the same experts, or if shapes
  //         or counts disagree with each other or with the config. All are named.
  static Result<ExpertLayout> Detect(const TensorFiles& files, const ModelConfig& config);

  // "per-expert gate_proj/up_proj/down_proj", "stacked gate_up_proj [E,2I,H]", ...
  const std::string& naming() const { return naming_; }
  ExpertEncoding encoding() const { return encoding_; }
  const std::vector<ExpertLayer>& layers() const { return layers_; }
  uint32_t hidden_size() const { return hidden_size_; }  // from the tensors
  uint32_t intermediate_size() const { return intermediate_size_; }
  bool has_biases() const { return has_biases_; }              // gpt_oss: experts carry biases
  uint32_t fp8_block_rows() const { return fp8_block_rows_; }  // as in ModelConfig
  uint32_t fp8_block_cols() const { return fp8_block_cols_; }

  // Tensors below an expert that are neither its elements nor known companions (scales, biases):
  // a caller that converts says so.
  const std::vector<std::string>& unknown_tensors() const { return unknown_tensors_; }

  // Requires an expert that layers() has.
  MatrixSlice Slice(uint32_t layer_index, uint32_t expert_index, Proj proj) const;

  // True for the tensors that hold routed experts (scales and biases included): all others are
  // trunk.
  bool IsExpertTensor(std::string_view name) const;

 private:
  friend class ExpertLayoutBuilder;
  // How one layer is stored; same index as layers_.
  struct Source {
    ExpertNaming naming = ExpertNaming::kUnknown;
    std::string stem;             // as in ExpertName
    std::string suffix;           // of the tensors that hold the elements
    bool is_split = true;         // stacked: gate and up are tensors of their own
    bool is_transposed = false;   // [in][out] instead of [out][in]
    bool is_interleaved = false;  // gate and up rows alternate
  };

  std::string naming_;
  ExpertEncoding encoding_ = ExpertEncoding::kFloat;
  std::vector<ExpertLayer> layers_;  // by layer_index
  std::vector<Source> sources_;
  std::vector<std::string> unknown_tensors_;
  uint32_t hidden_size_ = 0;
  uint32_t intermediate_size_ = 0;
  bool has_biases_ = false;
  uint32_t fp8_block_rows_ = 128;
  uint32_t fp8_block_cols_ = 128;
};

// Reads one projection as f32 [rows][cols], whatever the naming and encoding.
// Requires: an expert that the layout has; out.size() == rows * cols (both checked)
// Errors:   kIo; kCorrupt for NaN or infinity in the source, naming tensor and index
//           (allow_non_finite passes them on); kUnsupported for kNvfp4
// Threads:  any
// Cost:     contiguous slices are read in pieces of 64 KiB straight into `out`, strided ones
// through
//           blocks of at most 16 lines of the tensor. No other memory.
Status ReadExpertMatrix(const TensorFiles& files, const ExpertLayout& layout, uint32_t layer_index,
                        uint32_t expert_index, Proj proj, bool allow_non_finite,
                        std::span<float> out);

}  // namespace smoe::checkpoint
