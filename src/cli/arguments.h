// cli/arguments.h: the options of one command, bound to variables.
//
// A thin face over the command-line library (its one door is command_line.cc): commands compile
// without it, and the help, the completions and the man page come from the same list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace smoe::cli {

// "4GiB", "1.5GB" or plain bytes: cli/size.h.
struct SizeOption {
  std::optional<uint64_t>* value;
};

using OptionTarget =
    std::variant<bool*, std::string*, uint32_t*, uint64_t*, double*, std::optional<std::string>*,
                 std::optional<uint32_t>*, std::optional<uint64_t>*, std::optional<double>*,
                 std::vector<std::string>*, SizeOption>;

struct OptionInfo {
  std::string flags;  // "--tokens" or "-n,--count"; a positional's name has no dash
  OptionTarget target;
  std::string help;
  std::string value_name;  // "FILE", "N"; empty for a flag
  std::vector<std::string> choices;
  std::string group;  // heading in the help, empty: the command's own
  bool is_required = false;
  bool is_positional() const { return flags[0] != '-'; }
};

class Arguments {
 public:
  // value_name FILE or FOLDER makes completions offer paths.
  void Positional(const std::string& name, std::string* value, const std::string& help);
  void OptionalPositional(const std::string& name, std::string* value, const std::string& help);
  // One or more; the last of a command.
  void Positionals(const std::string& name, std::vector<std::string>* values,
                   const std::string& help);
  void Flag(const std::string& flags, bool* value, const std::string& help);
  void Option(const std::string& flags, OptionTarget target, const std::string& value_name,
              const std::string& help);
  void Choice(const std::string& flags, std::string* value, std::vector<std::string> choices,
              const std::string& help);
  // Options from here on stand under this heading.
  void Group(const std::string& heading) { group_ = heading; }

  const std::vector<OptionInfo>& options() const { return options_; }

 private:
  void Add(OptionInfo option);

  std::string group_;
  std::vector<OptionInfo> options_;
};

}  // namespace smoe::cli
