// Fuzz target of the vault: the input is the file. Asserts what acceptance promises: every part of
// every expert can be read, and everything that was read can be described.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/vault/blob_check.h"
#include "store/vault/vault.h"

// Named by libFuzzer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void ReadEverything(const smoe::store::vault::Vault& vault) {
  for (const auto& record : vault.records) {
    SMOE_CHECK(vault.Find(record.id) == &record);
    std::vector<std::byte> blob(record.padded_size);
    SMOE_CHECK(vault.file.ReadAt(record.byte_offset, blob).has_value());
    static_cast<void>(smoe::store::vault::CheckBlob(vault, record, blob));
  }
  if (vault.annex) {
    for (const auto& section : vault.annex->sections) {
      static_cast<void>(smoe::store::vault::ReadAnnexSection(vault.file, section));
    }
  }
  SMOE_CHECK(!Describe(vault, true).Dump().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("vault", 0);
  SMOE_CHECK(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size));
  const auto vault = smoe::store::vault::OpenVault("/proc/self/fd/" + std::to_string(fd));
  if (vault) ReadEverything(*vault);
  ::close(fd);
  return 0;
}
