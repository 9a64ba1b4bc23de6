#include "store/vault/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "io/file_checksum.h"
#include "store/vault/blob_check.h"
#include "store/vault/verify_collector.h"
#include "tensor/tensor.h"

namespace smoe::store::vault {

namespace {

constexpr uint64_t kSectionChunkBytes = uint64_t{8} << 20;
constexpr uint64_t kTensorChunkElements = uint64_t{1} << 17;

// Reads a blob directly where that works, so that verifying does not push the page cache out.
class BlobReader {
 public:
  explicit BlobReader(const Vault& vault) : vault_(vault) {
    if (Result<io::File> direct = io::File::OpenDirect(vault.path)) direct_ = std::move(*direct);
  }
  Status Read(const ExpertRecord& record, MutableBytes into) const {
    if (direct_.is_open() && direct_.ReadAt(record.byte_offset, into)) return Ok();
    return vault_.file.ReadAt(record.byte_offset, into);
  }

 private:
  const Vault& vault_;
  io::File direct_;
};

void VerifyRecord(const Vault& vault, const BlobReader& reader, const ExpertRecord& record,
                  MutableBytes buffer, VerifyCollector* collector) {
  const MutableBytes blob = buffer.first(record.padded_size);
  if (Status status = reader.Read(record, blob); !status) {
    collector->Problem(fmt::format("layer {}, expert {}: {}", record.id.layer_index,
                                   record.id.expert_index, status.error().message()));
  } else if (Status checked = CheckBlob(vault, record, blob); !checked) {
    collector->Problem(checked.error().message());
  } else if (!AllZero(Bytes(blob).subspan(record.raw_size))) {
    collector->OddPadding();
  }
  collector->Advance(record.padded_size);
}

void VerifySection(const Vault& vault, const AnnexSection& section, MutableBytes buffer,
                   VerifyCollector* collector) {
  const Result<uint64_t> checksum = io::ChecksumOfStretch(
      vault.file, section.offset, section.size, buffer, [&](uint64_t, Bytes piece) -> Status {
        collector->Advance(piece.size());
        return Ok();
      });
  if (!checksum) {
    return collector->Problem(
        fmt::format("annex section {}: {}", section.name, checksum.error().message()));
  }
  if (*checksum == section.checksum) return;
  collector->Problem(fmt::format("{}: annex section {}: checksum is {:016x}, expected {:016x}",
                                 vault.path, section.name, *checksum, section.checksum));
}

void VerifyTensor(const checkpoint::TensorFiles& files, const std::string& name,
                  const checkpoint::TensorInfo& info, VerifyReport* report) {
  const uint64_t element_bytes = tensor::DTypeBytes(info.dtype);
  const uint64_t count = info.size / element_bytes;
  std::vector<std::byte> raw(std::min(count, kTensorChunkElements) * element_bytes);
  std::vector<float> values(std::min(count, kTensorChunkElements));
  for (uint64_t first = 0; first < count; first += values.size()) {
    const size_t piece = std::min<uint64_t>(values.size(), count - first);
    const MutableBytes bytes = MutableBytes(raw).first(piece * element_bytes);
    if (Status status = files.Read(info, first * element_bytes, bytes); !status) {
      report->AddProblem(fmt::format("tensor {}: {}", name, status.error().message()));
      return;
    }
    tensor::ToF32({info.dtype, {piece}, bytes}, 0, std::span(values).first(piece));
    for (size_t i = 0; i < piece; ++i) {
      if (std::isfinite(values[i])) continue;
      report->AddProblem(fmt::format("{}: tensor {}: element {} is {}, expected a finite number",
                                     files.files()[info.file_index].path(), name, first + i,
                                     values[i]));
      return;
    }
    report->checked_bytes += bytes.size();
  }
}

}  // namespace

void VerifyReport::AddProblem(std::string problem) {
  ++problem_count;
  if (problems.size() < kProblemsKept) problems.push_back(std::move(problem));
}

Status VerifyBlobs(const Vault& vault, const VerifyOptions& options, VerifyReport* report) {
  uint64_t total = 0;
  uint64_t blob_bytes_max = 0;
  for (const ExpertRecord& record : vault.records) {
    total += record.padded_size;
    blob_bytes_max = std::max(blob_bytes_max, record.padded_size);
  }
  if (vault.annex) {
    for (const AnnexSection& section : vault.annex->sections) total += section.size;
  }
  report->expert_count += vault.records.size();
  report->has_checksums = vault.annex.has_value();
  const BlobReader reader(vault);
  VerifyCollector collector(options, total, report);
  SMOE_TRY_ASSIGN(const auto pool, ThreadPool::Create(std::max<size_t>(options.thread_count, 1)));
  std::vector<AlignedBuffer> buffers;
  for (size_t i = 0; i < pool->thread_count(); ++i) {
    SMOE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Create(blob_bytes_max, "verifying"));
    buffers.push_back(std::move(buffer));
  }
  std::atomic<size_t> next = 0;
  pool->ParallelFor(buffers.size(), 1, [&](size_t begin, size_t end) {
    for (size_t thread = begin; thread < end; ++thread) {
      for (size_t i = next++; i < vault.records.size(); i = next++) {
        VerifyRecord(vault, reader, vault.records[i], buffers[thread].bytes(), &collector);
      }
    }
  });
  if (vault.annex) {
    SMOE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Create(kSectionChunkBytes, "verifying"));
    for (const AnnexSection& section : vault.annex->sections) {
      VerifySection(vault, section, buffer.bytes(), &collector);
    }
  }
  if (collector.odd_padding_count() != 0) {
    report->warnings.push_back(
        fmt::format("the padding of {} experts is not zero", collector.odd_padding_count()));
  }
  return Ok();
}

void VerifyTensors(const checkpoint::TensorFiles& files, VerifyReport* report) {
  for (const auto& [name, info] : files.tensors()) {
    if (!tensor::IsFloat(info.dtype) || info.size == 0) continue;
    ++report->tensor_count;
    VerifyTensor(files, name, info, report);
  }
}

}  // namespace smoe::store::vault
