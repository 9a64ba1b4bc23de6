// store/vault/vault_store.h: the experts of a `.smoe` vault behind ExpertStore.
//
// A slot holds one padded blob, so that a direct read lands in place. Matrices are found by the
// descriptors, never by a fixed stride.
#pragma once

#include <memory>

#include "base/result.h"
#include "store/expert_store.h"
#include "store/vault/vault.h"

namespace smoe::store::vault {

struct VaultStoreOptions {
  bool direct_io =
      true;  // ask for O_DIRECT; where a real read is refused, buffered with a log line
  // Layers from here on are multi-token prediction and are left out.
  uint32_t num_hidden_layers = UINT32_MAX;
};

// Errors: kInvalid for a partial vault (with what is missing), or one without layers to run; kIo.
Result<std::unique_ptr<ExpertStore>> OpenVaultStore(Vault vault, const VaultStoreOptions& options);

}  // namespace smoe::store::vault
