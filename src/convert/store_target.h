// convert/store_target.h: what a conversion between stores writes: a vault or a record store.
//
//   target = Make...Target(...)      everything decided, nothing written
//   Open(resume, force)              .partial names, locked against a second writer
//   MakeEncoder() or MakeFiller() once a thread; then Write or Restore, any expert in any order
//   BeginFile / AppendFile / EndFile the trunk, then small files; from one thread
//   Finish(origin), Commit()         only Commit gives the final name
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "convert/expert_error.h"
#include "convert/random_weights.h"
#include "store/expert_store.h"
#include "tensor/quantise.h"
#include "tensor/quantise_nvfp4.h"
#include "tensor/weights.h"

namespace smoe::convert {

enum class StoreKind : uint8_t { kVault, kRecords };

// Turns experts into the bytes of the new store. Each thread has its own.
class ExpertEncoder {
 public:
  virtual ~ExpertEncoder() = default;
  // Fills buffer(), and adds to `errors` what the new weights differ from those of `weights`.
  // `index`: into AllExperts of the source.
  // Errors: kUnsupported, kCorrupt naming layer, expert and projection: weights that the new format
  //         cannot hold.
  virtual Status Encode(size_t index, const tensor::ExpertWeights& weights, ProjErrors* errors) = 0;
  virtual MutableBytes buffer() = 0;
};

// Makes experts of random codes, without any weights to start from. Each thread has its own.
class ExpertFiller {
 public:
  virtual ~ExpertFiller() = default;
  // Fills buffer() with an expert that its index and the filler's RandomExperts decide alone.
  virtual Status Fill(size_t index) = 0;
  virtual MutableBytes buffer() = 0;
};

class StoreTarget {
 public:
  virtual ~StoreTarget() = default;

  virtual std::string format_name() const = 0;           // "smoe-q4 group 32"
  virtual uint64_t expert_bytes() const = 0;             // all experts, as they lie on the drive
  virtual uint64_t file_bytes(uint64_t size) const = 0;  // what a file of `size` takes
  virtual std::string final_path() const = 0;            // the file that comes last, by Commit
  // Beside or in what is written. `force`: as Open will be told.
  virtual std::string journal_path(bool force) const = 0;
  // Bytes that an unfinished run occupies, which Open takes over or removes.
  virtual uint64_t partial_bytes(bool force) const = 0;
  // What Open and BeginFile of the trunk and of `parts` would refuse, without a trace.
  virtual Status CheckPlace(const std::vector<std::string>& parts, bool resume,
                            bool force) const = 0;

  virtual Status Open(bool resume, bool force) = 0;
  virtual Result<std::unique_ptr<ExpertEncoder>> MakeEncoder() const = 0;
  virtual Result<std::unique_ptr<ExpertFiller>> MakeFiller(const RandomExperts& random) const = 0;
  // Writes the buffer of an encoder or a filler; returns its checksum. Threads: any.
  virtual Result<uint64_t> Write(size_t index, Bytes buffer) = 0;
  // True if the expert is there from an interrupted run, with this checksum. `scratch`: an
  // encoder's buffer. Threads: any.
  virtual Result<bool> Restore(size_t index, uint64_t checksum, MutableBytes scratch) = 0;

  // `part`: "trunk", "config.json", ... each once.
  virtual Status BeginFile(std::string_view part, uint64_t size) = 0;
  virtual Status AppendFile(Bytes piece) = 0;
  virtual Status EndFile() = 0;

  virtual Status Finish(const Json& origin) = 0;
  // From now on a failure leaves what is done for a resume.
  virtual void KeepPartial() = 0;
  // The store has its name when this returns.
  virtual Status Commit() = 0;
};

// The model that both kinds describe. Borrowed: lives as long as the target.
struct TargetModel {
  const checkpoint::ModelConfig& config;
  const checkpoint::TrunkFacts& facts;
  std::span<const store::StoreLayer> layers;
  uint32_t hidden_size = 0;
  uint32_t intermediate_size = 0;
  std::string source_path;  // for messages
  std::string out_path;
};

// Errors: kInvalid for a bad group size; kUnsupported for what an arch block cannot hold.
Result<std::unique_ptr<StoreTarget>> MakeVaultTarget(const TargetModel& model,
                                                     tensor::SmoeBits bits, uint32_t group_size,
                                                     tensor::Quantiser quantiser);
// Errors: kUnsupported for layers with different numbers of experts; kInvalid for dims that are no
//         multiples of 16.
Result<std::unique_ptr<StoreTarget>> MakeRecordTarget(const TargetModel& model,
                                                      tensor::Nvfp4Quantiser quantiser);

}  // namespace smoe::convert
