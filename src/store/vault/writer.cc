#include "store/vault/writer.h"

#include <fmt/format.h>

#include <cstring>

#include "base/log.h"

namespace smoe::store::vault {

VaultWriter::VaultWriter(const io::File& file, VaultPlan plan)
    : file_(file),
      plan_(std::move(plan)),
      checksums_(plan_.expert_count()),
      written_(plan_.expert_count()) {}

Result<std::unique_ptr<VaultWriter>> VaultWriter::Create(const io::File& file, VaultPlan plan) {
  std::unique_ptr<VaultWriter> writer(new VaultWriter(file, std::move(plan)));
  // A leftover annex goes; blobs of an interrupted run stay for RestoreBlob.
  SMOE_TRY(file.Truncate(writer->plan_.blobs_end()));
  const std::vector<std::byte> zeros(writer->plan_.data_offset());
  SMOE_TRY(file.WriteAt(0, zeros));
  SMOE_TRY(file.Reserve(writer->plan_.blobs_end()));
  if (auto direct = io::File::OpenDirectWrite(file.path())) {
    writer->direct_ = std::move(*direct);
  } else {
    LogInfo("writing through the page cache: {}", direct.error().message());
  }
  return writer;
}

Status VaultWriter::WriteBlob(size_t index, Bytes blob) {
  SMOE_CHECK(index < written_.size());
  SMOE_CHECK(blob.size() == plan_.raw_size() || blob.size() == plan_.padded_size());
  const uint64_t offset = plan_.blob_offset(index);
  if (direct_.is_open() && io::IsDirectAligned(blob, offset)) {
    SMOE_TRY(direct_.WriteAt(offset, blob));
  } else {
    SMOE_TRY(file_.WriteAt(offset, blob));
    file_.StartWriteback(offset, blob.size());
  }
  checksums_[index] = Checksum(blob.first(plan_.raw_size()));
  written_[index] = 1;
  return Ok();
}

Result<bool> VaultWriter::RestoreBlob(size_t index, uint64_t checksum, MutableBytes scratch) {
  SMOE_CHECK(index < written_.size() && scratch.size() == plan_.raw_size());
  SMOE_TRY(file_.ReadAt(plan_.blob_offset(index), scratch));
  if (Checksum(scratch) != checksum) return false;
  checksums_[index] = checksum;
  written_[index] = 1;
  return true;
}

Status VaultWriter::AddSection(std::string_view name, Bytes content) {
  SMOE_TRY(BeginSection(name, content.size()));
  SMOE_TRY(AppendSection(content));
  return EndSection();
}

Status VaultWriter::BeginSection(std::string_view name, uint64_t size) {
  SMOE_CHECK(open_checksum_ == nullptr);
  SMOE_CHECK(!name.empty() && name.size() <= sizeof(AnnexDirectoryEntry::name));
  if (sections_.empty()) {
    // Room for the checksums, which are known last and stand first.
    const uint64_t bytes = sizeof(ChecksumsHead) + plan_.expert_count() * sizeof(uint64_t);
    sections_.push_back({std::string(kSectionChecksums), plan_.blobs_end(), bytes, 0});
  }
  for (const AnnexSection& section : sections_) SMOE_CHECK(section.name != name);
  const AnnexSection& last = sections_.back();
  open_position_ = RoundUp(last.offset + last.size, kBlobAlignment);
  sections_.push_back({std::string(name), open_position_, size, 0});
  open_checksum_ = std::make_unique<ChecksumStream>();
  return Ok();
}

Status VaultWriter::AppendSection(Bytes piece) {
  SMOE_CHECK(open_checksum_ != nullptr);
  const AnnexSection& section = sections_.back();
  SMOE_CHECK(open_position_ + piece.size() <= section.offset + section.size);
  SMOE_TRY(file_.WriteAt(open_position_, piece));
  file_.StartWriteback(open_position_, piece.size());
  open_checksum_->Add(piece);
  open_position_ += piece.size();
  return Ok();
}

Status VaultWriter::EndSection() {
  SMOE_CHECK(open_checksum_ != nullptr);
  AnnexSection& section = sections_.back();
  SMOE_CHECK(open_position_ == section.offset + section.size);
  section.checksum = open_checksum_->Digest();
  open_checksum_ = nullptr;
  return Ok();
}

Status VaultWriter::WriteAnnexEnd() {
  std::vector<std::byte> sums(sections_.front().size);
  ChecksumsHead head = {};
  std::memcpy(head.magic, kChecksumsMagic, sizeof(kChecksumsMagic));
  head.version = kAnnexVersion;
  head.expert_count = static_cast<uint32_t>(plan_.expert_count());
  head.metadata_size = plan_.data_offset();
  head.metadata_checksum = Checksum(plan_.Metadata());
  StoreStruct(sums, 0, head);
  std::memcpy(sums.data() + sizeof(head), checksums_.data(), checksums_.size() * sizeof(uint64_t));
  sections_.front().checksum = Checksum(sums);
  SMOE_TRY(file_.WriteAt(sections_.front().offset, sums));

  const AnnexSection& last = sections_.back();
  const uint64_t directory_offset = RoundUp(last.offset + last.size, kBlobAlignment);
  const uint64_t directory_size = sections_.size() * sizeof(AnnexDirectoryEntry);
  std::vector<std::byte> end(RoundUp(directory_size + sizeof(AnnexFooter), kBlobAlignment));
  for (size_t i = 0; i < sections_.size(); ++i) {
    AnnexDirectoryEntry entry = {};
    std::memcpy(entry.name, sections_[i].name.data(), sections_[i].name.size());
    entry.offset = sections_[i].offset;
    entry.size = sections_[i].size;
    entry.checksum = sections_[i].checksum;
    StoreStruct(end, i * sizeof(entry), entry);
  }
  AnnexFooter footer = {};
  std::memcpy(footer.magic, kAnnexMagic, sizeof(kAnnexMagic));
  footer.version = kAnnexVersion;
  footer.section_count = static_cast<uint32_t>(sections_.size());
  footer.annex_offset = plan_.blobs_end();
  footer.directory_offset = directory_offset;
  footer.directory_size = directory_size;
  footer.directory_checksum = Checksum(Bytes(end).first(directory_size));
  footer.file_bytes = directory_offset + end.size();
  StoreStruct(end, end.size() - sizeof(footer), footer);
  footer.footer_checksum =
      Checksum(Bytes(end).last(sizeof(footer)).first(offsetof(AnnexFooter, footer_checksum)));
  StoreStruct(end, end.size() - sizeof(footer), footer);
  return file_.WriteAt(directory_offset, end);
}

Status VaultWriter::Finish() {
  SMOE_CHECK(open_checksum_ == nullptr);
  for (const uint8_t written : written_) SMOE_CHECK(written == 1);
  if (!sections_.empty()) SMOE_TRY(WriteAnnexEnd());
  return WriteMetadata(file_, plan_);
}

Status WriteMetadata(const io::File& file, const VaultPlan& plan) {
  const std::vector<std::byte> metadata = plan.Metadata();
  SMOE_TRY(file.WriteAt(sizeof(SmoeHeader), Bytes(metadata).subspan(sizeof(SmoeHeader))));
  SMOE_TRY(file.Sync());
  SMOE_TRY(file.WriteAt(0, Bytes(metadata).first(sizeof(SmoeHeader))));
  return file.Sync();
}

}  // namespace smoe::store::vault
