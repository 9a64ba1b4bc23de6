// convert/give_up.h: what a conversion that failed leaves behind.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace smoe::convert {

// What is done stays where a later run can do better: after freeing space, or on a drive that is
// back. A source that cannot be converted leaves nothing, its journal included.
//
// `is_resume`: the run took over what an earlier one had done, which stays in any case.
// `keep_partial`: called where the output stays.
// Returns `status`, which must be a failure, with "writing OUT" and, where it is so, that --resume
// goes on.
Unexpected GiveUp(const std::string& out_path, const std::string& journal_path, bool is_resume,
                  const std::function<void()>& keep_partial, Status&& status);

}  // namespace smoe::convert
