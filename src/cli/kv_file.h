// cli/kv_file.h: --kv-file of run and chat: a conversation that outlives the program.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/generation.h"
#include "cli/model_options.h"
#include "engine/engine.h"

namespace smoe::cli {

class KvFile {
 public:
  // Adds --kv-file.
  void Define(Arguments& arguments);

  // Before anything is computed: a place that cannot be written, or is the model's own, is refused.
  // Nothing where the option is not given, here and below.
  Status CheckPlace(const store::ModelFiles& files, const ModelOptions& options) const;

  // Restores the file if it is there, and says so on stderr. Absent: it will be made.
  // Errors: as Engine::RestoreTokens. The file is left as it is.
  Result<std::optional<model::KvFileContent>> Restore(engine::Engine& engine,
                                                      Console& console) const;

  // Replaces the file by these tokens, as far as their keys and values are there.
  Status Save(engine::Engine& engine, std::span<const uint32_t> tokens,
              std::string_view note) const;

  // The same with a prompt and its answer. Stopped before the answer began, there is nothing worth
  // keeping: the file stays as it is.
  Status SaveAnswer(engine::Engine& engine, std::vector<uint32_t> prompt,
                    const Answer& answer) const;

  bool is_given() const { return path_.has_value(); }

 private:
  // The file itself, where the path is a link to it. Errors: kInvalid for a loop of links.
  Result<std::string> Target() const;

  std::optional<std::string> path_;
};

}  // namespace smoe::cli
