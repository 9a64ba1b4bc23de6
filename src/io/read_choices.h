// io/read_choices.h: what probes have chosen, kept between runs.
//
// One small JSON file for all stores of a user. It is only a saving of time: a file that is
// damaged, of another version or not writable is as good as none, and replaced where possible.
#pragma once

#include <optional>
#include <string>

#include "io/read_setting.h"

namespace smoe::io {

inline constexpr int kReadChoicesVersion = 1;
inline constexpr size_t kReadChoicesMax = 64;  // the oldest go

// As UserCachePath has it.
std::string ReadChoicesPath();

// `key` says for which machine, file system and store: see ReadChoiceKey.
std::optional<ReadSample> FindReadChoice(const std::string& path, const std::string& key);

// Makes the folder if it is not there. Errors: kIo, kInvalid (another process writes it just now).
Status KeepReadChoice(const std::string& path, const std::string& key, const ReadSample& chosen);

// Machine, kernel, device, file system, file, its size and age, and size of a read: a change of any
// is a reason to measure again. `machine` as MachineText says it.
Result<std::string> ReadChoiceKey(const std::string& machine, const std::string& file_path,
                                  uint64_t read_bytes);

}  // namespace smoe::io
