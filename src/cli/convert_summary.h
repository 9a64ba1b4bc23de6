// cli/convert_summary.h: what the commands that write a model check and print alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/trunk_format.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "convert/trunk.h"

namespace smoe::cli {

// Errors: kInvalid unless `path` is a folder: a single file would be taken for a config.json.
Status CheckCheckpointFolder(const std::string& path);

// --trunk-format of these commands; text that is empty leaves `formats` as they are.
void DefineTrunkOption(Arguments& arguments, std::string* text);
Status ParseTrunkOption(const std::string& text, checkpoint::TrunkFormats* formats);

// Lines "name  value" on stderr. Borrows the console.
class ConvertSummary {
 public:
  explicit ConvertSummary(Console& console) : console_(console) {}

  void Line(std::string_view name, const std::string& value);
  // "checkpoint" and where it comes from.
  void Checkpoint(const std::string& path, const std::string& model_type,
                  const std::string& naming);
  // "written" or, in a dry run, "would write".
  void Written(bool dry_run, const std::string& text);
  // Nothing for 0.
  void Resumed(uint64_t expert_count);
  // Nothing if the trunk was copied as it is.
  void Trunk(const checkpoint::TrunkFormats& formats, const convert::TrunkErrors& errors);
  // The rate is that of `bytes`; `unit` says which bytes: "/s of checkpoint".
  void Time(double seconds, uint64_t bytes, std::string_view unit);
  void Remarks(const std::vector<std::string>& decisions, const std::vector<std::string>& warnings);

 private:
  Console& console_;
};

}  // namespace smoe::cli
