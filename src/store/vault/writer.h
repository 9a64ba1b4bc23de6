// store/vault/writer.h: writes a `.smoe` vault, every offset known before the first byte.
//
//   plan    = VaultPlan::Create(spec)                sizes, table, descriptors, header, arch block
//   writer  = VaultWriter::Create(file, plan)        the file gets its full size, all zero
//   WriteBlob(index, raw) from any thread, any order; or RestoreBlob after an interruption
//   AddSection, or BeginSection / AppendSection / EndSection: the annex, in order (none: no annex)
//   Finish()                                         checksums, directory, then the metadata LAST
//
// Until Finish has written the header, the first 64 bytes are zero, and every reader calls such a
// file interrupted. The bytes before the annex are those of the original converter.
// Source: docs/formats/vault.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "io/file.h"
#include "store/expert_store.h"
#include "store/vault/annex.h"
#include "store/vault/format.h"
#include "tensor/quantise.h"

namespace smoe::store::vault {

// What a vault will hold. All experts have the same shapes.
struct VaultSpec {
  std::vector<ExpertId> experts;   // ascending by layer, then expert, without duplicates
  uint32_t hidden_size = 0;        // d_model
  uint32_t intermediate_size = 0;  // of one expert
  tensor::SmoeBits bits = tensor::SmoeBits::kQ4;
  uint32_t group_size = 64;
  // The checkpoint's topology, also if `experts` is only a part of it: that is what makes a vault
  // recognisable as partial.
  uint32_t num_moe_layers = 0;
  uint32_t max_experts_per_layer = 0;
  uint32_t vocab_size = 0;
  uint32_t ffn_dim = 0;     // HeaderFfnDim of store/vault/arch.h
  SmoeArchBlock arch = {};  // BuildArchBlock of store/vault/arch.h
};

class VaultPlan {
 public:
  // Errors: kInvalid for an empty, unsorted or too long list of experts, sizes of 0, sizes whose
  //         products overflow, or a topology smaller than the list. Cost: O(experts).
  static Result<VaultPlan> Create(VaultSpec spec);

  const VaultSpec& spec() const { return spec_; }
  size_t expert_count() const { return spec_.experts.size(); }
  uint64_t arch_offset() const { return arch_offset_; }
  uint64_t data_offset() const { return data_offset_; }
  // One blob: bytes of data, and rounded up to kBlobAlignment.
  uint64_t raw_size() const { return raw_size_; }
  uint64_t padded_size() const { return padded_size_; }
  // Requires index < expert_count().
  uint64_t blob_offset(size_t index) const { return data_offset_ + index * padded_size_; }
  // End of the last blob: the size of a vault without an annex.
  uint64_t blobs_end() const { return blobs_end_; }
  // Layout inside a blob: gate, up, down.
  std::span<const TensorPlace, kTensorsPerExpert> tensors() const { return tensors_; }

  // The file's first data_offset() bytes: header, table, descriptors, arch block, zeros.
  std::vector<std::byte> Metadata() const;

  // Size of the whole file with sections of these sizes in its annex ("checksums" not among them;
  // it is added).
  uint64_t FileBytesWithAnnex(std::span<const uint64_t> section_sizes) const;

 private:
  VaultPlan() = default;
  VaultSpec spec_;
  uint64_t arch_offset_ = 0;
  uint64_t data_offset_ = 0;
  uint64_t raw_size_ = 0;
  uint64_t padded_size_ = 0;
  uint64_t blobs_end_ = 0;
  uint64_t group_count_ = 0;  // of one expert
  TensorPlace tensors_[kTensorsPerExpert];
};

// Writes the metadata of `plan` into a file that already has its blobs: everything after the
// header, then the header, each on the drive before the next begins. For Finish and for recovery.
Status WriteMetadata(const io::File& file, const VaultPlan& plan);

class VaultWriter {
 public:
  // `file`: open for reading and writing, borrowed until the writer is gone; usually the file of an
  // io::AtomicFile, which the caller commits after Finish. Its size becomes plan.blobs_end() and
  // its first data_offset() bytes zero; blobs that are already there stay.
  static Result<std::unique_ptr<VaultWriter>> Create(const io::File& file, VaultPlan plan);

  VaultWriter(const VaultWriter&) = delete;
  VaultWriter& operator=(const VaultWriter&) = delete;

  const VaultPlan& plan() const { return plan_; }

  // Writes one blob at its place and remembers its checksum. Requires blob.size() ==
  // plan().raw_size(); or plan().padded_size(), zeros at its end, which at the start of a page is
  // written past the page cache where the file system allows it: that waits for the drive, so have
  // a thread more than cores. Threads: any, one per index. Errors: kIo, kExhausted.
  Status WriteBlob(size_t index, Bytes blob);

  // Takes over a blob that an interrupted run has written: reads it back and compares it with the
  // checksum that run recorded. `scratch` has plan().raw_size() bytes. Threads: as WriteBlob.
  // Returns false if the bytes differ (write the blob again).
  Result<bool> RestoreBlob(size_t index, uint64_t checksum, MutableBytes scratch);

  // XXH3-64 of the raw bytes. Requires the blob to be written or restored.
  uint64_t blob_checksum(size_t index) const { return checksums_[index]; }

  // The annex, from one thread, in the order of the calls. Names as in annex.h, at most 32 bytes,
  // each once. BeginSection says the size; AppendSection pieces must add up to it.
  Status AddSection(std::string_view name, Bytes content);
  Status BeginSection(std::string_view name, uint64_t size);
  Status AppendSection(Bytes piece);
  Status EndSection();

  // Requires every blob of the plan to be there. After it the file is a complete vault, and on the
  // drive.
  Status Finish();

 private:
  VaultWriter(const io::File& file, VaultPlan plan);
  Status WriteAnnexEnd();

  const io::File& file_;
  io::File direct_;  // not open where the file system has no direct writes
  VaultPlan plan_;
  std::vector<uint64_t> checksums_;
  std::vector<uint8_t> written_;  // a byte each, so that threads never share one
  std::vector<AnnexSection> sections_;
  std::unique_ptr<ChecksumStream> open_checksum_;  // of the section being streamed
  uint64_t open_position_ = 0;
};

}  // namespace smoe::store::vault
