#include "engine/doctor.h"

#include <utility>

namespace smoe::engine {

const char* SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kOk:
      return "ok";
    case Severity::kNote:
      return "note";
    case Severity::kProblem:
      return "problem";
  }
  return "problem";
}

std::vector<Finding> Examine(const DoctorOptions& options) {
  std::vector<Finding> findings = {CheckKernelVersion(options.root), CheckInstructions(options.isa),
                                   CheckCores(options.root), CheckGovernor(options.root)};
  for (Finding& finding : CheckNuma(options.root, options.numa)) {
    findings.push_back(std::move(finding));
  }
  for (Finding& finding : std::vector<Finding>{
           CheckFreeMemory(options.root), CheckSwap(options.root), CheckOvercommit(options.root),
           CheckLockedMemory(options.root), CheckHugePages(options.root), CheckUring(),
           CheckDirectReads(options.path), CheckFreeSpace(options.path)}) {
    findings.push_back(std::move(finding));
  }
  if (std::optional<Finding> model = CheckModel(options.path, options.root)) {
    findings.push_back(std::move(*model));
  }
  return findings;
}

}  // namespace smoe::engine
