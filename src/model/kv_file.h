// model/kv_file.h: a conversation in a file: its tokens, and their keys and values.
//
// What was computed once is read back at the next start, with the same bits. A file fits one model
// in one way of computing it: anything else is refused by name, never computed with. What follows
// the last token in its page is written as zeros, so a file holds nothing of other conversations.
// Source: docs/formats/kv.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/kv_cache.h"

namespace smoe::model {

inline constexpr char kKvFileMagic[8] = {'S', 'M', 'O', 'E', '-', 'K', 'V', '\n'};
inline constexpr uint32_t kKvFileVersion = 1;
inline constexpr uint64_t kKvFileAlignment = 4096;  // where the pages begin
inline constexpr uint64_t kKvSettingsBytesMax = 256;
inline constexpr uint64_t kKvNoteBytesMax = uint64_t{16} << 20;

// The first 128 bytes. Sizes and offsets in bytes.
struct KvFileHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;     // 128
  uint64_t header_checksum;  // XXH3 of the header, this field taken as 0
  uint64_t body_checksum;    // XXH3 of everything behind the header
  uint64_t file_bytes;
  uint64_t model_fingerprint;
  uint32_t kv_kind;  // 0: f32, 1: f16, 2: int8
  uint32_t layer_count;
  uint32_t key_value_heads;
  uint32_t head_dim;
  uint32_t page_tokens;
  uint32_t settings_bytes;
  uint64_t token_count;
  uint64_t page_bytes;
  uint64_t note_bytes;
  uint8_t zero[32];
};
static_assert(sizeof(KvFileHeader) == 128);

// Whose keys and values they are.
struct KvFileOwner {
  uint64_t model_fingerprint = 0;  // store/model_fingerprint.h
  std::string settings;            // what else changes them: "arithmetic int8, trunk int8"
  uint32_t vocab_size = 0;
};

struct KvFileContent {
  std::vector<uint32_t> tokens;
  std::string note;  // of whoever wrote the file
};

// Writes the first kv.token_count() tokens with their keys and values, in the place of PATH.
// Requires at least one token, and as many in `tokens`; settings of at most kKvSettingsBytesMax
// (checked).
// Errors: kInvalid for a note above kKvNoteBytesMax; as io::AtomicFile; kExhausted, kIo.
Status SaveKvFile(const std::string& path, const KvFileOwner& owner, const KvShape& shape,
                  const KvSequence& kv, std::span<const uint32_t> tokens, std::string_view note);

// Reads a file; its pages are kept in `cache` for sequences that begin with its tokens.
// `token_max`: more are refused.
// Errors: kInvalid if it is of another model, settings, kind or shape, or too long: both values;
//         kCorrupt for what is no such file, truncated or damaged; kUnsupported for a newer
//         version; kExhausted if the cache has no room; kIo. The cache is unchanged then, but for
//         kept pages that may have been forgotten.
Result<KvFileContent> LoadKvFile(const std::string& path, const KvFileOwner& owner,
                                 size_t token_max, KvCache* cache);

}  // namespace smoe::model
