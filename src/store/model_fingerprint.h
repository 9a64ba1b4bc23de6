// store/model_fingerprint.h: one number for a model, so that what was computed with one is not
// taken for another's.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "store/model_files.h"

namespace smoe::store {

// XXH3 over what decides the numbers of the config, every tensor of the trunk (name, type, shape,
// first and last 4 KiB) and of each layer with experts the first and the last one (first 4 KiB of
// each extent). Training changes weights everywhere, so samples tell models apart; that two files
// agree in all of them and differ elsewhere is not found out.
// The same model in another format is another model; names and places of files do not matter.
// Errors: kIo, kCorrupt as reading.
// Cost: up to two reads for each tensor of the trunk: a tenth of a second from a cold drive.
Result<uint64_t> ModelFingerprint(const ModelFiles& files);

}  // namespace smoe::store
