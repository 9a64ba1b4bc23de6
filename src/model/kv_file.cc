#include "model/kv_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "io/atomic_file.h"

namespace smoe::model {

namespace {

constexpr uint64_t kHeaderBytes = sizeof(KvFileHeader);

// Where the parts of the body lie. Everything is known from the header.
struct Layout {
  uint64_t tokens_offset = 0;
  uint64_t note_offset = 0;
  uint64_t pages_offset = 0;
  uint64_t page_count = 0;
  uint64_t file_bytes = 0;
};

// nullopt: more than 64 bits.
std::optional<Layout> LayoutOf(const KvFileHeader& header) {
  constexpr uint64_t kTokenCountMax = uint64_t{1} << 48;
  if (header.token_count > kTokenCountMax) return std::nullopt;
  Layout layout;
  layout.tokens_offset = kHeaderBytes + header.settings_bytes;
  layout.note_offset = layout.tokens_offset + header.token_count * sizeof(uint32_t);
  layout.pages_offset = RoundUp(layout.note_offset + header.note_bytes, kKvFileAlignment);
  layout.page_count = CeilDiv(header.token_count, kKvPageTokens);
  const auto pages = CheckedMul(layout.page_count, header.page_bytes);
  const auto end = pages ? CheckedAdd(layout.pages_offset, *pages) : std::nullopt;
  if (!end) return std::nullopt;
  layout.file_bytes = *end;
  return layout;
}

KvFileHeader HeaderOf(const KvShape& shape) {
  KvFileHeader header = {};
  std::memcpy(header.magic, kKvFileMagic, sizeof(header.magic));
  header.version = kKvFileVersion;
  header.header_bytes = kHeaderBytes;
  header.kv_kind = static_cast<uint32_t>(shape.kind);
  header.layer_count = shape.layer_count;
  header.key_value_heads = shape.key_value_heads;
  header.head_dim = shape.head_dim();
  header.page_tokens = kKvPageTokens;
  header.page_bytes = KvPageBytes(shape);
  return header;
}

uint64_t HeaderChecksum(KvFileHeader header) {
  header.header_checksum = 0;
  return Checksum(std::as_bytes(std::span(&header, 1)));
}

std::string KindText(uint32_t kind) {
  if (kind > static_cast<uint32_t>(kernels::KvKind::kInt8)) return fmt::format("number {}", kind);
  return kernels::KvKindName(static_cast<kernels::KvKind>(kind));
}

// Identity, checksum, limits, relations: what must hold of any file.
Status CheckHeader(const KvFileHeader& header, uint64_t file_bytes) {
  if (std::memcmp(header.magic, kKvFileMagic, sizeof(header.magic)) != 0) {
    return Corrupt("begins with other bytes than \"SMOE-KV\": no file of keys and values");
  }
  if (header.version != kKvFileVersion) {
    return Unsupported("version {}, this program reads {}; remove the file to begin anew",
                       header.version, kKvFileVersion);
  }
  const uint64_t checksum = HeaderChecksum(header);
  if (checksum != header.header_checksum) {
    return Corrupt("header_checksum: {:016x}, the header has {:016x}; remove the file",
                   header.header_checksum, checksum);
  }
  if (header.header_bytes != kHeaderBytes) {
    return Corrupt("header_bytes: {}, expected {}", header.header_bytes, kHeaderBytes);
  }
  if (header.settings_bytes > kKvSettingsBytesMax) {
    return Corrupt("settings_bytes: {}, at most {} expected", header.settings_bytes,
                   kKvSettingsBytesMax);
  }
  if (header.note_bytes > kKvNoteBytesMax) {
    return Corrupt("note_bytes: {}, at most {} expected", header.note_bytes, kKvNoteBytesMax);
  }
  if (header.token_count == 0) return Corrupt("token_count: 0, expected at least 1");
  if (!AllZero(std::as_bytes(std::span(header.zero)))) {
    return Corrupt("the header's last {} bytes: not all zero", sizeof(header.zero));
  }
  const std::optional<Layout> layout = LayoutOf(header);
  if (!layout || layout->file_bytes != header.file_bytes) {
    return Corrupt("file_bytes: {}, {} follow from the counts in the header", header.file_bytes,
                   layout ? fmt::format("{}", layout->file_bytes) : "more than 64 bits");
  }
  if (header.file_bytes != file_bytes) {
    return Corrupt("{} bytes, the header says {}; truncated?", file_bytes, header.file_bytes);
  }
  return Ok();
}

// Whether it is of this model, as this program keeps it.
Status CheckOwner(const KvFileHeader& header, const KvFileOwner& owner, const KvShape& shape,
                  size_t token_max) {
  if (header.model_fingerprint != owner.model_fingerprint) {
    return Invalid("is of another model (fingerprint {:016x}, this one has {:016x}); name another",
                   header.model_fingerprint, owner.model_fingerprint);
  }
  const KvFileHeader own = HeaderOf(shape);
  if (header.kv_kind != own.kv_kind) {
    return Invalid("keys and values are {}, here they are {}; --kv changes that",
                   KindText(header.kv_kind), KindText(own.kv_kind));
  }
  struct Row {
    const char* field;
    uint64_t found;
    uint64_t expected;
  };
  for (const Row& row : {Row{"layer_count", header.layer_count, own.layer_count},
                         Row{"key_value_heads", header.key_value_heads, own.key_value_heads},
                         Row{"head_dim", header.head_dim, own.head_dim},
                         Row{"page_tokens", header.page_tokens, own.page_tokens},
                         Row{"page_bytes", header.page_bytes, own.page_bytes}}) {
    if (row.found == row.expected) continue;
    return Invalid("{}: {}, the model has {}", row.field, row.found, row.expected);
  }
  if (header.token_count > token_max) {
    return Invalid("holds {} tokens, the context {}; raise --context", header.token_count,
                   token_max);
  }
  return Ok();
}

// Everything in front of the pages but the header.
Status ReadFront(const io::File& file, const KvFileHeader& header, const Layout& layout,
                 std::vector<std::byte>* front) {
  front->resize(layout.pages_offset - kHeaderBytes);
  SMOE_TRY(file.ReadAt(kHeaderBytes, *front));
  const Bytes padding =
      Bytes(*front).subspan(layout.note_offset + header.note_bytes - kHeaderBytes);
  if (!AllZero(padding)) return Corrupt("the {} bytes before the pages: not zero", padding.size());
  return Ok();
}

std::string TextAt(Bytes front, uint64_t file_offset, uint64_t bytes) {
  const Bytes part = front.subspan(file_offset - kHeaderBytes, bytes);
  std::string text(part.size(), '\0');
  std::memcpy(text.data(), part.data(), part.size());
  return text;
}

Status CheckContent(const KvFileContent& content, const std::string& settings,
                    const KvFileOwner& owner) {
  if (settings != owner.settings) {
    return Invalid("was computed with {}, this run has {}", settings, owner.settings);
  }
  for (size_t i = 0; i < content.tokens.size(); ++i) {
    if (content.tokens[i] < owner.vocab_size) continue;
    return Corrupt("token {} at position {}, the vocabulary has {}", content.tokens[i], i,
                   owner.vocab_size);
  }
  return Ok();
}

Result<KvFileContent> Load(const io::File& file, const KvFileOwner& owner, size_t token_max,
                           KvCache* cache) {
  SMOE_TRY_ASSIGN(const uint64_t file_bytes, file.Size());
  if (file_bytes < kHeaderBytes) {
    return Corrupt("{} bytes, a header has {}; truncated?", file_bytes, kHeaderBytes);
  }
  std::array<std::byte, kHeaderBytes> header_bytes;
  SMOE_TRY(file.ReadAt(0, header_bytes));
  const auto header = LoadStruct<KvFileHeader>(header_bytes);
  SMOE_TRY(CheckHeader(header, file_bytes));
  SMOE_TRY(CheckOwner(header, owner, cache->shape(), token_max));
  const Layout layout = *LayoutOf(header);
  std::vector<std::byte> front;
  SMOE_TRY(ReadFront(file, header, layout, &front));
  KvFileContent content;
  content.tokens.resize(header.token_count);
  std::memcpy(content.tokens.data(), front.data() + layout.tokens_offset - kHeaderBytes,
              header.token_count * sizeof(uint32_t));
  content.note = TextAt(front, layout.note_offset, header.note_bytes);

  ChecksumStream checksum;
  checksum.Add(front);
  KvSequence kv = cache->NewSequence();
  SMOE_TRY(kv.Reserve(content.tokens.size()));
  for (size_t page = 0; page < layout.page_count; ++page) {
    SMOE_TRY(file.ReadAt(layout.pages_offset + page * header.page_bytes, kv.PageBytes(page)));
    checksum.Add(kv.PageBytes(page));
  }
  if (checksum.Digest() != header.body_checksum) {
    return Corrupt("body_checksum: {:016x}, the bytes give {:016x}; remove the file",
                   header.body_checksum, checksum.Digest());
  }
  SMOE_TRY(CheckContent(content, TextAt(front, kHeaderBytes, header.settings_bytes), owner));
  file.DropFromPageCache(0, file_bytes);
  kv.SetTokenCount(content.tokens.size());
  kv.Retire(content.tokens);
  return content;
}

std::vector<std::byte> FrontOf(const Layout& layout, const std::string& settings,
                               std::span<const uint32_t> tokens, std::string_view note) {
  std::vector<std::byte> front(layout.pages_offset - kHeaderBytes);
  const auto put = [&](uint64_t file_offset, Bytes bytes) {
    if (!bytes.empty()) {
      std::memcpy(front.data() + file_offset - kHeaderBytes, bytes.data(), bytes.size());
    }
  };
  put(kHeaderBytes, AsBytes(settings));
  put(layout.tokens_offset, std::as_bytes(tokens));
  put(layout.note_offset, AsBytes(note));
  return front;
}

}  // namespace

Status SaveKvFile(const std::string& path, const KvFileOwner& owner, const KvShape& shape,
                  const KvSequence& kv, std::span<const uint32_t> tokens, std::string_view note) {
  const size_t token_count = kv.token_count();
  SMOE_CHECK(token_count > 0 && token_count <= tokens.size());
  SMOE_CHECK(owner.settings.size() <= kKvSettingsBytesMax);
  if (note.size() > kKvNoteBytesMax) {
    return Invalid("{}: {} bytes beside the keys and values, at most {} fit", path, note.size(),
                   kKvNoteBytesMax);
  }
  KvFileHeader header = HeaderOf(shape);
  header.model_fingerprint = owner.model_fingerprint;
  header.settings_bytes = static_cast<uint32_t>(owner.settings.size());
  header.token_count = token_count;
  header.note_bytes = note.size();
  const std::optional<Layout> layout = LayoutOf(header);
  SMOE_CHECK(layout);  // it was in memory
  header.file_bytes = layout->file_bytes;

  SMOE_TRY_ASSIGN(io::AtomicFile out, io::AtomicFile::Open(path, {.overwrite = true}));
  // A conversation is nobody else's to read, whatever the umask.
  if (::fchmod(out.file().fd(), S_IRUSR | S_IWUSR) != 0) {
    return Io("{}: making it private: {}", out.partial_path(), std::strerror(errno));
  }
  SMOE_TRY(out.file().Reserve(header.file_bytes));
  ChecksumStream checksum;
  const std::vector<std::byte> front =
      FrontOf(*layout, owner.settings, tokens.first(token_count), note);
  checksum.Add(front);
  SMOE_TRY(out.file().WriteAt(kHeaderBytes, front));
  std::vector<std::byte> last_page;
  for (size_t page = 0; page < layout->page_count; ++page) {
    Bytes bytes = kv.PageBytes(page);
    if (const size_t row = token_count - page * kKvPageTokens; row < kKvPageTokens) {
      last_page.assign(bytes.begin(), bytes.end());
      ClearTokensFrom(shape, row, last_page);
      bytes = last_page;
    }
    checksum.Add(bytes);
    const uint64_t offset = layout->pages_offset + page * header.page_bytes;
    SMOE_TRY(out.file().WriteAt(offset, bytes));
    out.file().StartWriteback(offset, bytes.size());
  }
  header.body_checksum = checksum.Digest();
  header.header_checksum = HeaderChecksum(header);
  SMOE_TRY(out.file().WriteAt(0, std::as_bytes(std::span(&header, 1))));
  SMOE_TRY(out.file().Sync());
  out.file().DropFromPageCache(0, header.file_bytes);
  return out.Commit();
}

Result<KvFileContent> LoadKvFile(const std::string& path, const KvFileOwner& owner,
                                 size_t token_max, KvCache* cache) {
  SMOE_TRY_ASSIGN(const io::File file, io::File::OpenRead(path));
  Result<KvFileContent> content = Load(file, owner, token_max, cache);
  // Reading names the file itself.
  if (!content && !content.error().message().starts_with(path)) {
    return While(path, std::move(content));
  }
  return content;
}

}  // namespace smoe::model
