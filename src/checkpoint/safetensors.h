// checkpoint/safetensors.h: the table of a safetensors file, and of a sharded checkpoint.
//
// Nothing is mapped: tensors are read with positioned reads into memory the caller owns, so that a
// file that shrinks gives an error and not a signal. Source: github.com/huggingface/safetensors,
// README, "Format"; its rules (no overlaps, no gaps, no duplicate names) are enforced here too.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/file.h"
#include "tensor/tensor.h"

namespace smoe::checkpoint {

// The header's cap. The library of origin caps at 100 MB; real files reach 126 MB.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = uint64_t{256} << 20;

// Caps of a sharded checkpoint: its index file, and the shards in it (each keeps a descriptor).
inline constexpr uint64_t kIndexBytesMax = uint64_t{256} << 20;
inline constexpr size_t kShardCountMax = 1000;

struct TensorInfo {
  tensor::DType dtype = tensor::DType::kF32;
  tensor::Shape shape;
  uint32_t file_index = 0;  // into TensorFiles::files()
  uint64_t offset = 0;      // in bytes from the start of that file
  uint64_t size = 0;        // in bytes
};

// All tensors of a checkpoint: one file, or the shards its index names. Immutable once opened.
class TensorFiles {
 public:
  // `path`: a .safetensors file, or a folder with model.safetensors or
  // model.safetensors.index.json (the index wins; stray files beside it are not read).
  // Errors: kCorrupt, kIo, kInvalid naming file, tensor, expected, found; what the file seems to
  //         be if it is no safetensors (LFS pointer, zip, pickle, GGUF, empty); the missing shards.
  static Result<TensorFiles> Open(const std::string& path);
  // A safetensors image inside another file (a vault's annex).
  static Result<TensorFiles> OpenEmbedded(const std::string& path, uint64_t offset, uint64_t size);

  const std::vector<io::File>& files() const { return files_; }
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }
  const TensorInfo* Find(std::string_view name) const;  // nullptr: absent

  // Reads bytes [offset, offset + into.size()) of a tensor. Threads: any.
  // Requires: the range to lie inside the tensor (checked).
  // Errors:   kCorrupt if the file shrank since it was opened; kIo.
  Status Read(const TensorInfo& tensor, uint64_t offset, MutableBytes into) const;

 private:
  // The image at [offset, offset + size) of a file becomes part of this.
  Status AddFile(io::File file, uint64_t offset, uint64_t size);
  Status AddShards(const std::string& folder);

  std::vector<io::File> files_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
};

}  // namespace smoe::checkpoint
