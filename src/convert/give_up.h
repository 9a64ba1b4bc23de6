// convert/give_up.h: what a conversion that failed or was killed leaves behind.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace smoe::convert {

// The run that ends.
struct GivenUp {
  std::string out_path;
  std::string journal_path;
  bool is_resume = false;  // it took over what an earlier run had done, which stays in any case
  bool is_force = false;   // it replaces another output, as whatever goes on with it must
};

// What is done stays where a later run can do better: after freeing space, or on a drive that is
// back. A source that cannot be converted leaves nothing, its journal included.
// `keep_partial`: called where the output stays.
// Returns `status`, which must be a failure, with "writing OUT" and, where it is so, that --resume
// goes on.
Unexpected GiveUp(const GivenUp& run, const std::function<void()>& keep_partial, Status&& status);

// A kill between the last rename and the end leaves a finished output, whose last file is
// `final_path`, and its journal: nothing is left to resume, and the journal goes. False if it was
// not so.
bool RemoveFinishedJournal(const std::string& final_path, const std::string& journal_path);

}  // namespace smoe::convert
