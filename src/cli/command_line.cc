// The one door to the command-line library: builds its parser from our list of commands.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>

#include "cli/command.h"
#include "cli/size.h"
#include "cli/version.h"

namespace smoe::cli {

namespace {

// The library's own conversions take "" for 0, wrap -1 to the largest number and cut what is too
// large, without a word; these checks see the text first. They return what is wrong, or "".
template <class T>
std::string CheckNumber(const std::string& text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stopped_at, error] = std::from_chars(text.data(), end, value);
  const bool is_read = error == std::errc() && stopped_at == end;
  if constexpr (std::is_floating_point_v<T>) {
    if (is_read && std::isfinite(value)) return "";
    return fmt::format("\"{}\", expected a number", text);
  } else {
    if (is_read) return "";
    return fmt::format("\"{}\", expected a whole number from 0 to {}", text,
                       std::numeric_limits<T>::max());
  }
}

// Puts the number of bytes in the text's place.
std::string TakeSize(std::string& text) {
  const Result<uint64_t> size = ParseSize(text);
  if (!size) return size.error().message();
  text = fmt::format("{}", *size);
  return "";
}

template <class T>
struct NumberBehind {
  using Type = T;
};
template <class T>
struct NumberBehind<std::optional<T>> {
  using Type = T;
};

// Adds one option, by the type of the variable behind it.
struct OptionAdder {
  CLI::App& app;
  const OptionInfo& option;

  CLI::Option* operator()(bool* value) const {
    return app.add_flag(option.flags, *value, option.help);
  }
  CLI::Option* operator()(const SizeOption& size) const {
    return app.add_option(option.flags, *size.value, option.help)
        ->transform(CLI::Validator(TakeSize, ""));
  }
  template <class T>
  CLI::Option* operator()(T* value) const {
    CLI::Option* added = app.add_option(option.flags, *value, option.help);
    using Number = typename NumberBehind<T>::Type;
    if constexpr (std::is_arithmetic_v<Number>) {
      added->check(CLI::Validator([](std::string& text) { return CheckNumber<Number>(text); }, ""));
    }
    return added;
  }
};

// What the help shows behind an option's name. The library's own text repeats a positional's name
// and shows the insides of checks.
std::string ValueText(const OptionInfo& option) {
  if (option.is_positional()) return " ";
  if (option.choices.empty()) return option.value_name;
  return fmt::format("{}", fmt::join(option.choices, "|"));
}

void AddOption(CLI::App& app, const OptionInfo& option) {
  CLI::Option* added = std::visit(OptionAdder{app, option}, option.target);
  if (!option.choices.empty()) added->check(CLI::IsMember(option.choices));
  if (!option.value_name.empty()) {
    added->type_name(option.value_name);
    added->option_text(ValueText(option));
  }
  if (!option.group.empty()) added->group(option.group);
  if (option.is_required) added->required();
}

std::string Footer(const Command& command) {
  std::string footer = "\nExample:\n";
  std::string line;
  for (const char* c = command.example;; ++c) {
    if (*c != '\n' && *c != '\0') {
      line += *c;
      continue;
    }
    footer += "  " + line + "\n";
    line.clear();
    if (*c == '\0') return footer;
  }
}

constexpr char kProgramFooter[] =
    "\nMODEL is a .smoe vault, a record store or a Hugging Face folder. Results go to stdout, all "
    "else\nto stderr.\n"
    "Exit status: 0 done, 1 damaged file, 2 wrong usage, 3 not supported, 4 drive or system,\n"
    "5 out of memory or space, 130 interrupted.\n"
    "Help for a command, with an example: smoe COMMAND --help\n";

struct Program {
  CLI::App app{"smoe runs Mixture-of-Experts language models that are larger than memory."};
  std::vector<std::pair<const Command*, Runner>> runners;
  std::vector<CLI::App*> subcommands;
};

std::unique_ptr<Program> BuildProgram() {
  auto program = std::make_unique<Program>();
  CLI::App& app = program->app;
  app.name("smoe");
  app.set_version_flag("--version", std::string("smoe ") + kVersion);
  app.require_subcommand(1);
  app.get_formatter()->column_width(30);
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.footer(kProgramFooter);
  for (const Command& command : AllCommands()) {
    CLI::App* subcommand = app.add_subcommand(command.name, command.summary);
    subcommand->group(command.group)->footer(Footer(command));
    Arguments arguments;
    program->runners.emplace_back(&command, command.define(arguments));
    program->subcommands.push_back(subcommand);
    for (const OptionInfo& option : arguments.options()) AddOption(*subcommand, option);
  }
  return program;
}

// The library puts two empty lines between groups.
std::string HelpText(std::string help) {
  for (size_t at; (at = help.find("\n\n\n")) != std::string::npos;) help.erase(at, 1);
  return help;
}

std::string UsageProblem(std::span<const std::string> arguments, bool has_command,
                         const CLI::ParseError& error) {
  if (has_command) return error.what();
  if (arguments.empty()) return "no command given";
  if (arguments[0].starts_with('-')) return error.what();
  return fmt::format("no command \"{}\"", arguments[0]);
}

int Code(ExitCode code) { return static_cast<int>(code); }

// The exit code; a result that could not be written is no result.
int End(const std::string& name, Result<ExitCode> result, Console& console) {
  if (Status written = console.Flush(); result && !written) {
    result = Unexpected(std::move(written.error()));
  }
  if (result) return Code(*result);
  // `smoe ... | head` has what it wanted: the exit code tells, a message would only be noise.
  if (console.ReaderIsGone()) return Code(ExitCodeOf(result.error().code()));
  console.Note("{}: {}\n", name, Printable(result.error().message()));
  return Code(ExitCodeOf(result.error().code()));
}

}  // namespace

int RunProgram(std::span<const std::string> arguments, Console& console) {
  const auto program = BuildProgram();
  try {
    program->app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    console.Print("{}", HelpText(program->app.help()));
    return End("smoe", ExitCode::kOk, console);
  } catch (const CLI::CallForAllHelp&) {
    console.Print("{}", HelpText(program->app.help("", CLI::AppFormatMode::All)));
    return End("smoe", ExitCode::kOk, console);
  } catch (const CLI::CallForVersion& version) {
    console.Print("{}\n", version.what());
    return End("smoe", ExitCode::kOk, console);
  } catch (const CLI::ParseError& error) {
    std::string name = "smoe";
    for (const CLI::App* subcommand : program->subcommands) {
      if (subcommand->parsed()) name += " " + subcommand->get_name();
    }
    const std::string problem = UsageProblem(arguments, name != "smoe", error);
    console.Note("{}: {}\nTry: {} --help\n", name, Printable(problem), name);
    return Code(ExitCode::kUsage);
  }
  for (size_t i = 0; i < program->runners.size(); ++i) {
    const auto& [command, runner] = program->runners[i];
    if (!program->subcommands[i]->parsed()) continue;
    return End(std::string("smoe ") + command->name, runner(console), console);
  }
  return Code(ExitCode::kUsage);
}

}  // namespace smoe::cli
