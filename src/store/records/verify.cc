#include "store/records/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "io/file_checksum.h"
#include "store/records/record.h"
#include "store/vault/verify_collector.h"

namespace smoe::store::records {

namespace {

using vault::VerifyCollector;

constexpr uint64_t kFileChunkBytes = uint64_t{8} << 20;

// Reads records directly where that works, so that verifying does not push the page cache out.
class RecordReader {
 public:
  explicit RecordReader(const RecordFolder& folder) : folder_(folder) {
    if (folder.layout.record_stride % io::kDirectAlignment != 0) return;
    for (const io::File& file : folder.files) {
      Result<io::File> direct = io::File::OpenDirect(file.path());
      if (!direct) {
        direct_.clear();
        return;
      }
      direct_.push_back(std::move(*direct));
    }
  }
  Status Read(ExpertKey key, MutableBytes into) const {
    const uint64_t offset = folder_.layout.RecordOffset(key.expert);
    if (!direct_.empty() && direct_[key.layer].ReadAt(offset, into)) return Ok();
    return folder_.files[key.layer].ReadAt(offset, into);
  }

 private:
  const RecordFolder& folder_;
  std::vector<io::File> direct_;
};

void VerifyRecord(const RecordFolder& folder, const RecordReader& reader, ExpertKey key,
                  MutableBytes buffer, VerifyCollector* collector) {
  const MutableBytes record = buffer.first(folder.layout.record_stride);
  if (Status status = reader.Read(key, record); !status) {
    collector->Problem(fmt::format("{}: {}", folder.RecordName(key), status.error().message()));
  } else if (Status checked = CheckRecord(folder, key, record); !checked) {
    collector->Problem(checked.error().message());
  } else if (!PaddingIsZero(folder.spec, record)) {
    collector->OddPadding();
  }
  collector->Advance(record.size());
}

void VerifyFile(const RecordFolder& folder, const StoreFile& stored, MutableBytes buffer,
                VerifyCollector* collector) {
  const std::string path = (std::filesystem::path(folder.path) / stored.name).string();
  const Result<io::File> file = io::File::OpenRead(path);
  if (!file) return collector->Problem(file.error().message());
  const Result<uint64_t> found =
      io::ChecksumOfStretch(*file, 0, stored.bytes, buffer, [&](uint64_t, Bytes piece) -> Status {
        collector->Advance(piece.size());
        return Ok();
      });
  if (!found) return collector->Problem(found.error().message());
  if (*found == stored.checksum) return;
  collector->Problem(fmt::format("{}: checksum is {:016x}, expected {:016x} by the manifest", path,
                                 *found, stored.checksum));
}

uint64_t TotalBytes(const RecordFolder& folder) {
  uint64_t total = folder.layer_bytes();
  for (const StoreFile& file : folder.index.files) total += file.bytes;
  return total;
}

}  // namespace

Status VerifyRecords(const RecordFolder& folder, const vault::VerifyOptions& options,
                     vault::VerifyReport* report) {
  report->expert_count = folder.record_count();
  report->has_checksums = !folder.index.record_checksums.empty();
  VerifyCollector collector(options, TotalBytes(folder), report);
  const RecordReader reader(folder);
  SMOE_TRY_ASSIGN(const auto pool, ThreadPool::Create(std::max<size_t>(options.thread_count, 1)));
  std::vector<AlignedBuffer> buffers;
  for (size_t i = 0; i < pool->thread_count(); ++i) {
    SMOE_TRY_ASSIGN(AlignedBuffer buffer,
                    AlignedBuffer::Create(folder.layout.record_stride, "verifying"));
    buffers.push_back(std::move(buffer));
  }
  std::atomic<uint64_t> next = 0;
  pool->ParallelFor(buffers.size(), 1, [&](size_t begin, size_t end) {
    for (size_t thread = begin; thread < end; ++thread) {
      for (uint64_t i = next++; i < folder.record_count(); i = next++) {
        const ExpertKey key = ExpertRecordId{i}.Key(folder.layout.num_experts);
        VerifyRecord(folder, reader, key, buffers[thread].bytes(), &collector);
      }
    }
  });
  if (!folder.index.files.empty()) {
    SMOE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Create(kFileChunkBytes, "verifying"));
    for (const StoreFile& file : folder.index.files) {
      VerifyFile(folder, file, buffer.bytes(), &collector);
    }
  }
  if (collector.odd_padding_count() != 0) {
    report->warnings.push_back(
        fmt::format("the padding of {} experts is not zero", collector.odd_padding_count()));
  }
  return Ok();
}

}  // namespace smoe::store::records
