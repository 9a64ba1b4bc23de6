// engine/doctor.h: looks at a machine as the engine would use it, and says what to change.
//
// Nothing is taken on trust where it can be tried: huge pages are asked for and counted, a direct
// read is read, a ring is opened. Nothing is changed; the one file that is written is removed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace smoe::engine {

enum class Severity : uint8_t {
  kOk,
  kNote,     // works, and could be better or may surprise
  kProblem,  // costs most of the speed, or makes something impossible
};
const char* SeverityName(Severity severity);  // "ok", "note", "problem"

struct Finding {
  Severity severity = Severity::kOk;
  std::string subject = {};  // "huge pages"
  std::string found = {};    // what is there, in numbers
  std::string meaning = {};  // what follows from it; empty if that is plain
  std::string remedy = {};   // what to change; empty if nothing
  // Set if nothing can run as it is: the kind of failure that running would end in.
  std::optional<ErrorCode> blocks = {};
};

struct DoctorOptions {
  std::string path = ".";  // a MODEL, or a folder where models lie or shall lie
  std::string isa = {};    // SMOE_ISA; empty: the best
  bool numa = false;       // a line for each node, and where pages land
  // Where /proc and /sys are looked up: "" on a real system, a folder in tests.
  std::string root = {};
};

// All of the checks below, in the order of the report.
std::vector<Finding> Examine(const DoctorOptions& options);

// The machine.
Finding CheckKernelVersion(const std::string& root);
Finding CheckInstructions(const std::string& isa);
Finding CheckCores(const std::string& root);
Finding CheckGovernor(const std::string& root);
std::vector<Finding> CheckNuma(const std::string& root, bool in_detail);

// Memory.
Finding CheckFreeMemory(const std::string& root);
Finding CheckSwap(const std::string& root);
Finding CheckOvercommit(const std::string& root);
// Whether this process may lock so many bytes more: asks the kernel, with addresses that hold
// nothing, and gives them up again.
bool MayLock(uint64_t bytes);
// may_lock: whether the limit binds this user at all; it does not bind one with CAP_IPC_LOCK.
Finding CheckLockedMemory(const std::string& root, bool (*may_lock)(uint64_t) = MayLock);
Finding CheckHugePages(const std::string& root);

// The drive and the model on it.
Finding CheckUring();
Finding CheckDirectReads(const std::string& path);
Finding CheckFreeSpace(const std::string& path);
// nullopt for a folder without a model.
std::optional<Finding> CheckModel(const std::string& path, const std::string& root);

}  // namespace smoe::engine
