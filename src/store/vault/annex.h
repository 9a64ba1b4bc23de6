// store/vault/annex.h: what follows the last expert blob, so that one file is the whole model.
//
// An annex is a run of named sections, each at a multiple of kBlobAlignment and with an XXH3-64
// checksum, then a directory of them, then a footer in the last 64 bytes of the file. The first
// section is always "checksums": one checksum per expert and one for the metadata before the
// blobs. It opens with a magic of its own, so that a file whose end was cut off is told from a file
// that never had an annex. Readers ignore sections whose names they do not know.
// Source: docs/formats/vault.md, "The annex".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/file.h"

namespace smoe::store::vault {

// Names of sections.
inline constexpr std::string_view kSectionChecksums = "checksums";
inline constexpr std::string_view kSectionTrunk = "trunk";  // a safetensors image
inline constexpr std::string_view kSectionConfig = "config.json";
inline constexpr std::string_view kSectionGenerationConfig = "generation_config.json";
inline constexpr std::string_view kSectionTokenizer = "tokenizer.json";
inline constexpr std::string_view kSectionTokenizerConfig = "tokenizer_config.json";
inline constexpr std::string_view kSectionChatTemplate = "chat_template.jinja";
inline constexpr std::string_view kSectionOrigin = "origin.json";

inline constexpr uint8_t kAnnexMagic[8] = {'S', 'M', 'O', 'E', 'A', 'N', 'N', 'X'};
inline constexpr uint8_t kChecksumsMagic[8] = {'S', 'M', 'O', 'E', 'S', 'U', 'M', 'S'};
inline constexpr uint32_t kAnnexVersion = 1;
inline constexpr uint32_t kAnnexSectionsMax = 1024;
// Small sections are read whole; the largest published tokenizer.json has 33 MB.
inline constexpr uint64_t kSmallSectionBytesMax = uint64_t{256} << 20;

#pragma pack(push, 1)

struct AnnexFooter {
  uint8_t magic[8];  // kAnnexMagic
  uint32_t version;
  uint32_t section_count;
  uint64_t annex_offset;      // end of the last blob: where the first section starts
  uint64_t directory_offset;  // of section_count AnnexDirectoryEntry
  uint64_t directory_size;    // in bytes
  uint64_t directory_checksum;
  uint64_t file_bytes;       // of the whole file
  uint64_t footer_checksum;  // of the 56 bytes before it
};
static_assert(sizeof(AnnexFooter) == 64);

struct AnnexDirectoryEntry {
  char name[32];  // NUL-padded; may fill all bytes
  uint64_t offset;
  uint64_t size;  // without padding
  uint64_t checksum;
  uint64_t reserved;  // zero
};
static_assert(sizeof(AnnexDirectoryEntry) == 64);

// Head of the section "checksums"; expert_count u64 in table order follow.
struct ChecksumsHead {
  uint8_t magic[8];  // kChecksumsMagic
  uint32_t version;
  uint32_t expert_count;
  uint64_t metadata_size;  // header.data_offset
  uint64_t metadata_checksum;
  uint8_t reserved[32];
};
static_assert(sizeof(ChecksumsHead) == 64);

#pragma pack(pop)

struct AnnexSection {
  std::string name;
  uint64_t offset = 0;  // in bytes from the start of the file
  uint64_t size = 0;
  uint64_t checksum = 0;  // XXH3-64 of its size bytes
};

struct Annex {
  uint64_t offset = 0;
  std::vector<AnnexSection> sections;      // in the order of the directory
  std::vector<uint64_t> expert_checksums;  // of the raw bytes of each expert, in table order
  uint64_t metadata_checksum = 0;          // of the file's first header.data_offset bytes

  const AnnexSection* Find(std::string_view name) const;  // nullptr: absent
};

struct AnnexPlace {
  uint64_t blobs_end = 0;     // end of the last padded blob
  uint64_t file_bytes = 0;    // size of the file
  uint64_t data_offset = 0;   // header.data_offset
  uint32_t expert_count = 0;  // entries of the table
};

// Reads footer, directory and checksums, and checks all of them; nullopt if the file has no annex.
// Errors: kCorrupt naming field, expected and found: a footer that does not fit its file, a
//         damaged directory or checksum section, an annex whose end was cut off.
Result<std::optional<Annex>> ReadAnnex(const io::File& file, const AnnexPlace& place);

// The content of a section, after comparing its checksum.
// Errors: kCorrupt if the checksum differs or the section is larger than kSmallSectionBytesMax.
Result<std::string> ReadAnnexSection(const io::File& file, const AnnexSection& section);

// Copies a section of any size to the start of `target`, and compares its checksum on the way.
// Errors: kCorrupt if the checksum differs (target then holds the bytes that were found); kIo.
Status CopyAnnexSection(const io::File& file, const AnnexSection& section, const io::File& target);

}  // namespace smoe::store::vault
