#include "cli/arguments.h"

#include <utility>

namespace smoe::cli {

void Arguments::Add(OptionInfo option) {
  option.group = group_;
  options_.push_back(std::move(option));
}

void Arguments::Positional(const std::string& name, std::string* value, const std::string& help) {
  Add({name, value, help, name, {}, {}, true});
}

void Arguments::OptionalPositional(const std::string& name, std::string* value,
                                   const std::string& help) {
  Add({name, value, help, name, {}, {}, false});
}

void Arguments::Positionals(const std::string& name, std::vector<std::string>* values,
                            const std::string& help) {
  Add({name, values, help, name, {}, {}, true});
}

void Arguments::Flag(const std::string& flags, bool* value, const std::string& help) {
  Add({flags, value, help, {}, {}, {}, false});
}

void Arguments::Option(const std::string& flags, OptionTarget target, const std::string& value_name,
                       const std::string& help) {
  Add({flags, target, help, value_name, {}, {}, false});
}

void Arguments::Choice(const std::string& flags, std::string* value,
                       std::vector<std::string> choices, const std::string& help) {
  Add({flags, value, help, "WORD", std::move(choices), {}, false});
}

}  // namespace smoe::cli
