// checkpoint/safetensors_header.h: the JSON table at the start of a safetensors image.
//
// Knows no file: it takes the header's text and the size of the data behind it. Separate from
// TensorFiles so that a fuzzer and the damage tests reach every rule without a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "tensor/tensor.h"

namespace smoe::checkpoint {

// Dimensions of one tensor at most. Real ones have up to 5.
inline constexpr size_t kTensorRankMax = 32;

struct HeaderEntry {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  tensor::Shape shape;
  uint64_t begin = 0;  // in bytes from the end of the header
  uint64_t end = 0;
};

// Entries in the order of their data. Rules, the same as those of the library of origin unless
// said:
//  - one JSON object, nothing but white space after it; a name twice is refused (A02), there too a
//    key twice inside one tensor;
//  - "__metadata__" is absent, null, or an object of strings; anything else is refused by name;
//  - dtype, shape and data_offsets must be there, and no other key (stricter than the original);
//  - shape x element size must not overflow and must be end - begin;
//  - the ranges cover the data exactly: no overlap, no gap, nothing left over.
// `header` may be extended by padding, its content stays.
// Errors: kCorrupt naming tensor, expected, found; kUnsupported for a dtype we do not know.
Result<std::vector<HeaderEntry>> ParseSafetensorsHeader(std::string& header, uint64_t data_bytes);

// What a file that is no safetensors seems to be, from its first bytes: "a Git LFS pointer: ...".
// Empty if nothing is recognised.
std::string_view GuessFileKind(Bytes first_bytes);

}  // namespace smoe::checkpoint
