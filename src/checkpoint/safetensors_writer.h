// checkpoint/safetensors_writer.h: writes a safetensors image piece by piece.
//
// The header is computed first from names, types and shapes, so that data can be streamed in
// without holding more than one piece. Tensors are laid out in the order given; data starts at a
// multiple of 8 and each tensor at a multiple of its element size as far as the order allows.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tensor/tensor.h"

namespace smoe::checkpoint {

struct TensorSpec {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  tensor::Shape shape;
};

struct SafetensorsLayout {
  std::string header;             // the 8-byte length and the JSON, padded with spaces
  std::vector<uint64_t> offsets;  // of each tensor, in bytes from the start of the image
  uint64_t total_bytes = 0;       // of the image
};

// `metadata`: string pairs for __metadata__; empty: none.
Result<SafetensorsLayout> LayOutSafetensors(
    const std::vector<TensorSpec>& tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace smoe::checkpoint
