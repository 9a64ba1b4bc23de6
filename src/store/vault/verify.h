// store/vault/verify.h: reads a whole vault and says everything that is wrong with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "store/vault/vault.h"

namespace smoe::store::vault {

// Problems kept as sentences; the rest is only counted.
inline constexpr size_t kProblemsKept = 100;

struct VerifyOptions {
  size_t thread_count = 2;
  // Bytes checked so far, of how many. Called from one thread at a time, a few hundred times.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct VerifyReport {
  uint64_t checked_bytes = 0;
  uint64_t expert_count = 0;
  bool has_checksums = false;  // an annex: any changed bit is found; else only what cannot be right
  uint64_t tensor_count = 0;   // of the trunk, looked at for NaN and infinity
  uint64_t problem_count = 0;
  std::vector<std::string> problems;  // the first kProblemsKept
  std::vector<std::string> warnings;  // odd, but harmless

  bool ok() const { return problem_count == 0; }
  void AddProblem(std::string problem);
};

// Every expert (checksum, scales, padding) and every annex section of an open vault.
// Problems of the content go to the report; the Result fails only for kExhausted, and kInvalid for
// the number of threads.
// Cost: one pass over the file in large direct reads where possible; one blob per thread.
Status VerifyBlobs(const Vault& vault, const VerifyOptions& options, VerifyReport* report);

// Every float tensor: NaN and infinity are problems, named with tensor and index.
// Cost: one pass, 1 MiB of memory.
void VerifyTensors(const checkpoint::TensorFiles& files, VerifyReport* report);

}  // namespace smoe::store::vault
