#include "convert/extract_trunk.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "checkpoint/safetensors.h"
#include "io/atomic_file.h"
#include "io/file_checksum.h"
#include "store/vault/vault.h"

namespace smoe::convert {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

Unexpected NoTrunk(const std::string& vault_path) {
  std::filesystem::path beside(vault_path);
  beside.replace_extension(".scout.safetensors");
  std::error_code ignored;
  if (std::filesystem::exists(beside, ignored)) {
    return Invalid("{}: no trunk inside; it is already a file of its own: {}", vault_path,
                   beside.string());
  }
  return Invalid("{}: no trunk inside, and no {} beside it", vault_path, beside.string());
}

}  // namespace

Result<ExtractReport> ExtractTrunk(const std::string& vault_path, const std::string& out_path,
                                   bool force, Progress& progress) {
  SMOE_TRY_ASSIGN(const store::vault::Vault vault, store::vault::OpenVault(vault_path));
  const store::vault::AnnexSection* trunk =
      vault.annex ? vault.annex->Find(store::vault::kSectionTrunk) : nullptr;
  if (trunk == nullptr) return NoTrunk(vault_path);
  SMOE_TRY_ASSIGN(const auto tensors,
                  checkpoint::TensorFiles::OpenEmbedded(vault_path, trunk->offset, trunk->size));
  SMOE_TRY(io::CheckNoInput(out_path, {&vault_path, 1}));
  SMOE_TRY_ASSIGN(const uint64_t free, io::FreeSpace(out_path));
  if (free < trunk->size) {
    return Exhausted("{}: needs {} bytes, the drive has {} free", out_path, trunk->size, free);
  }
  SMOE_TRY_ASSIGN(io::AtomicFile out, io::AtomicFile::Open(out_path, {force, false}));
  const ProgressPhase phase(progress, "extracting", trunk->size);
  std::vector<std::byte> piece(std::min(kPieceBytes, trunk->size));
  const auto copy = [&](uint64_t at, Bytes part) -> Status {
    SMOE_TRY(CheckGoesOn(progress));
    SMOE_TRY(out.file().WriteAt(at, part));
    out.file().StartWriteback(at, part.size());
    progress.Advance(part.size());
    return Ok();
  };
  SMOE_TRY_ASSIGN(const uint64_t checksum,
                  io::ChecksumOfStretch(vault.file, trunk->offset, trunk->size, piece, copy));
  if (checksum != trunk->checksum) {
    return Corrupt("{}: trunk: checksum is {:016x}, expected {:016x}", vault_path, checksum,
                   trunk->checksum);
  }
  SMOE_TRY(out.Commit());
  return ExtractReport{out_path, trunk->size, tensors.tensors().size()};
}

}  // namespace smoe::convert
