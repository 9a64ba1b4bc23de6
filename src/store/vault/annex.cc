#include "store/vault/annex.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/bytes.h"
#include "io/file_checksum.h"
#include "store/vault/format.h"

namespace smoe::store::vault {

namespace {

constexpr uint64_t kCopyChunkBytes = uint64_t{4} << 20;

Status CheckFooter(const AnnexFooter& footer, Bytes raw, const AnnexPlace& place) {
  const uint64_t checksum = Checksum(raw.first(offsetof(AnnexFooter, footer_checksum)));
  if (footer.footer_checksum != checksum) {
    return Corrupt("annex footer: footer_checksum is {:016x}, its bytes give {:016x}",
                   uint64_t{footer.footer_checksum}, checksum);
  }
  if (footer.version != kAnnexVersion) {
    return Unsupported("annex footer: version is {}, this program reads {}",
                       uint32_t{footer.version}, kAnnexVersion);
  }
  if (footer.file_bytes != place.file_bytes) {
    return Corrupt("annex footer: file_bytes is {}, the file has {}", uint64_t{footer.file_bytes},
                   place.file_bytes);
  }
  if (footer.annex_offset != place.blobs_end) {
    return Corrupt("annex footer: annex_offset is {}, the last blob ends at {}",
                   uint64_t{footer.annex_offset}, place.blobs_end);
  }
  if (footer.section_count == 0 || footer.section_count > kAnnexSectionsMax) {
    return Corrupt("annex footer: section_count is {}, expected 1 to {}",
                   uint32_t{footer.section_count}, kAnnexSectionsMax);
  }
  const uint64_t size = footer.section_count * sizeof(AnnexDirectoryEntry);
  if (footer.directory_size != size) {
    return Corrupt("annex footer: directory_size is {}, expected {} for {} sections",
                   uint64_t{footer.directory_size}, size, uint32_t{footer.section_count});
  }
  const uint64_t end = place.file_bytes - sizeof(AnnexFooter);
  if (footer.directory_offset < place.blobs_end || !RangeFits(footer.directory_offset, size, end)) {
    return Corrupt("annex footer: directory_offset is {}, expected {} bytes between {} and {}",
                   uint64_t{footer.directory_offset}, size, place.blobs_end, end);
  }
  return Ok();
}

Result<AnnexSection> ParseEntry(const AnnexDirectoryEntry& entry, const AnnexFooter& footer) {
  const char* name_end = std::find(entry.name, entry.name + sizeof(entry.name), '\0');
  AnnexSection section{std::string(entry.name, static_cast<size_t>(name_end - entry.name)),
                       entry.offset, entry.size, entry.checksum};
  const bool printable = std::all_of(section.name.begin(), section.name.end(),
                                     [](char c) { return c > ' ' && c <= '~'; });
  if (section.name.empty() || !printable) return Corrupt("annex: a section without a plain name");
  if (section.offset % kBlobAlignment != 0 || section.offset < footer.annex_offset ||
      !RangeFits(section.offset, section.size, footer.directory_offset)) {
    return Corrupt(
        "annex section {}: offset {} with {} bytes, expected a multiple of {} between {} and {}",
        section.name, section.offset, section.size, kBlobAlignment, uint64_t{footer.annex_offset},
        uint64_t{footer.directory_offset});
  }
  if (entry.reserved != 0) {
    return Corrupt("annex section {}: reserved is {}, expected 0", section.name,
                   uint64_t{entry.reserved});
  }
  return section;
}

Status ReadDirectory(const io::File& file, const AnnexFooter& footer, Annex* annex) {
  std::vector<std::byte> raw(footer.directory_size);
  SMOE_TRY(file.ReadAt(footer.directory_offset, raw));
  if (const uint64_t found = Checksum(raw); found != footer.directory_checksum) {
    return Corrupt("annex directory: checksum is {:016x}, expected {:016x}", found,
                   uint64_t{footer.directory_checksum});
  }
  std::set<std::string> names;
  for (uint32_t i = 0; i < footer.section_count; ++i) {
    const auto entry = LoadStruct<AnnexDirectoryEntry>(raw, i * sizeof(AnnexDirectoryEntry));
    SMOE_TRY_ASSIGN(AnnexSection section, ParseEntry(entry, footer));
    if (!names.insert(section.name).second) {
      return Corrupt("annex section {}: twice in the directory", section.name);
    }
    annex->sections.push_back(std::move(section));
  }
  return Ok();
}

Status ReadChecksums(const io::File& file, const AnnexPlace& place, Annex* annex) {
  const AnnexSection* section = annex->Find(kSectionChecksums);
  if (section == nullptr) return Corrupt("annex: section checksums is missing");
  const uint64_t size = sizeof(ChecksumsHead) + uint64_t{place.expert_count} * sizeof(uint64_t);
  if (section->size != size) {
    return Corrupt("annex section checksums: {} bytes, expected {} for {} experts", section->size,
                   size, place.expert_count);
  }
  SMOE_TRY_ASSIGN(const std::string content, ReadAnnexSection(file, *section));
  const Bytes raw = AsBytes(content);
  const auto head = LoadStruct<ChecksumsHead>(raw);
  if (std::memcmp(head.magic, kChecksumsMagic, sizeof(kChecksumsMagic)) != 0 ||
      head.version != kAnnexVersion || head.expert_count != place.expert_count ||
      head.metadata_size != place.data_offset) {
    return Corrupt(
        "annex section checksums: version {}, {} experts, {} bytes of metadata; expected version "
        "{}, {} experts, {} bytes",
        uint32_t{head.version}, uint32_t{head.expert_count}, uint64_t{head.metadata_size},
        kAnnexVersion, place.expert_count, place.data_offset);
  }
  annex->metadata_checksum = head.metadata_checksum;
  annex->expert_checksums.resize(place.expert_count);
  std::memcpy(annex->expert_checksums.data(), raw.data() + sizeof(ChecksumsHead),
              place.expert_count * sizeof(uint64_t));
  return Ok();
}

// True if the bytes after the last blob begin as only an annex does.
Result<bool> BeginsLikeAnnex(const io::File& file, const AnnexPlace& place) {
  if (place.file_bytes - place.blobs_end < sizeof(kChecksumsMagic)) return false;
  std::byte start[sizeof(kChecksumsMagic)];
  SMOE_TRY(file.ReadAt(place.blobs_end, start));
  return std::memcmp(start, kChecksumsMagic, sizeof(start)) == 0;
}

}  // namespace

const AnnexSection* Annex::Find(std::string_view name) const {
  for (const AnnexSection& section : sections) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

Result<std::optional<Annex>> ReadAnnex(const io::File& file, const AnnexPlace& place) {
  std::byte raw[sizeof(AnnexFooter)] = {};
  const bool has_room = place.file_bytes - place.blobs_end >= sizeof(AnnexFooter);
  if (has_room) SMOE_TRY(file.ReadAt(place.file_bytes - sizeof(AnnexFooter), raw));
  const auto footer = LoadStruct<AnnexFooter>(raw);
  if (std::memcmp(footer.magic, kAnnexMagic, sizeof(kAnnexMagic)) != 0) {
    SMOE_TRY_ASSIGN(const bool begun, BeginsLikeAnnex(file, place));
    if (!begun) return std::nullopt;
    return Corrupt(
        "the annex begins at {}, but its footer is not in the file's last {} bytes (the file has "
        "{}): truncated?",
        place.blobs_end, sizeof(AnnexFooter), place.file_bytes);
  }
  SMOE_TRY(CheckFooter(footer, raw, place));
  Annex annex;
  annex.offset = footer.annex_offset;
  SMOE_TRY(ReadDirectory(file, footer, &annex));
  SMOE_TRY(ReadChecksums(file, place, &annex));
  return annex;
}

Result<std::string> ReadAnnexSection(const io::File& file, const AnnexSection& section) {
  if (section.size > kSmallSectionBytesMax) {
    return Corrupt("annex section {}: {} bytes, expected at most {}", section.name, section.size,
                   kSmallSectionBytesMax);
  }
  std::string content(section.size, '\0');
  SMOE_TRY(file.ReadAt(section.offset, std::as_writable_bytes(std::span(content))));
  if (const uint64_t found = Checksum(AsBytes(content)); found != section.checksum) {
    return Corrupt("annex section {}: checksum is {:016x}, expected {:016x}", section.name, found,
                   section.checksum);
  }
  return content;
}

Status CopyAnnexSection(const io::File& file, const AnnexSection& section, const io::File& target) {
  std::vector<std::byte> buffer(std::min(section.size, kCopyChunkBytes));
  SMOE_TRY_ASSIGN(
      const uint64_t checksum,
      io::ChecksumOfStretch(file, section.offset, section.size, buffer,
                            [&](uint64_t at, Bytes piece) { return target.WriteAt(at, piece); }));
  if (checksum == section.checksum) return Ok();
  return Corrupt("annex section {}: checksum is {:016x}, expected {:016x}", section.name, checksum,
                 section.checksum);
}

}  // namespace smoe::store::vault
