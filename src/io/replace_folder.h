// io/replace_folder.h: a folder that takes the place of another in one step.
//
// Whoever looks, and whenever the machine stops, finds the older folder whole under its name or the
// newer one.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace smoe::io {

// What ReplaceFolder could not do, so far as it can be known before the newer folder is made.
// Errors: kInvalid for a mount point, which no rename can move, and for the folder that the program
//         was started in, whose relative names would lead nowhere afterwards. kIo.
Status CheckReplaceableFolder(const std::string& folder);

// `source` becomes `target`, which is there; both lie in the same folder and are no links. Then
// everything in the older folder for which `is_replaced(name)` is true, or whose name the newer one
// has too, is removed; the rest moves to the newer one.
// A file system that cannot exchange names gets two renames: between them the older folder is
// TARGET.replaced.
// What cannot be removed of the older folder is told to the log: the newer one is in its place.
// Errors: kUnsupported, naming both, where the system does not let them change places: the older
//         folder has its name still. kIo.
Status ReplaceFolder(const std::string& source, const std::string& target,
                     const std::function<bool(const std::string& name)>& is_replaced);

}  // namespace smoe::io
