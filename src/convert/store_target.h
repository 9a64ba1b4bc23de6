// convert/store_target.h: what a conversion between stores writes: a vault or a record store.
//
//   target = Make...Target(...)      everything decided, nothing written
//   Open(resume, force)              .partial names, locked against a second writer
//   MakeEncoder() once a thread; Encode, then Write or Restore, any expert in any order
//   BeginFile / AppendFile / EndFile the trunk, then small files; from one thread
//   Finish(origin), Commit()         only Commit gives the final name
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "convert/expert_error.h"
#include "store/model_files.h"
#include "tensor/weights.h"

namespace smoe::convert {

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

class StoreTarget {
 public:
  virtual ~StoreTarget() = default;

  virtual std::string format_name() const = 0;           // "smoe-q4 group 32"
  virtual std::string journal_path() const = 0;          // beside or in what is written
  virtual uint64_t expert_bytes() const = 0;             // all experts, as they lie on the drive
  virtual uint64_t file_bytes(uint64_t size) const = 0;  // what a file of `size` takes
  // Bytes that an unfinished run already occupies.
  virtual uint64_t partial_bytes() const = 0;
  // What Open would refuse, without a trace.
  virtual Status CheckPlace(bool resume, bool force) const = 0;

  virtual Status Open(bool resume, bool force) = 0;
  virtual Result<std::unique_ptr<ExpertEncoder>> MakeEncoder() const = 0;
  // Writes an encoder's buffer; returns its checksum. Threads: any.
  virtual Result<uint64_t> Write(size_t index, ExpertEncoder& encoder) = 0;
  // True if the expert is there from an interrupted run, with this checksum. Threads: any.
  virtual Result<bool> Restore(size_t index, uint64_t checksum, ExpertEncoder& scratch) = 0;

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

// What both kinds need. Borrowed: lives as long as the target.
struct TargetModel {
  const store::ModelFiles& files;
  std::vector<store::ExpertId> experts;  // AllExperts
  std::string out_path;
  std::string quantiser;  // "mse", or the other one of the format
};

// quantiser "mse" or "reference".
// Errors: kInvalid for a bad group size; kUnsupported for what an arch block cannot hold.
Result<std::unique_ptr<StoreTarget>> MakeVaultTarget(const TargetModel& model,
                                                     tensor::SmoeBits bits, uint32_t group_size);
// quantiser "mse" or "amax".
// Errors: kUnsupported for layers with different numbers of experts; kInvalid for dims that are no
//         multiples of 16.
Result<std::unique_ptr<StoreTarget>> MakeRecordTarget(const TargetModel& model);

}  // namespace smoe::convert
