// smoe completions bash|zsh|fish
//
// Made from the same list of options as the help, so that they cannot drift apart.
#include <memory>

#include "cli/command.h"

namespace smoe::cli {

namespace {

// The spellings of an option: "-n,--count" gives both.
std::vector<std::string> Spellings(const OptionInfo& option) {
  std::vector<std::string> spellings;
  size_t begin = 0;
  while (begin <= option.flags.size()) {
    const size_t end = std::min(option.flags.find(',', begin), option.flags.size());
    spellings.push_back(option.flags.substr(begin, end - begin));
    begin = end + 1;
  }
  return spellings;
}

std::vector<OptionInfo> OptionsOf(const Command& command) {
  Arguments arguments;
  command.define(arguments);
  return arguments.options();
}

std::string Joined(const std::vector<std::string>& words) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : " ") + word;
  return joined;
}

std::string CommandNames() {
  std::vector<std::string> names;
  for (const Command& command : AllCommands()) names.emplace_back(command.name);
  return Joined(names);
}

// bash: words after an option with choices, else the options, else files.
std::string BashScript() {
  std::string script =
      "_smoe() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"" +
      CommandNames() +
      "\" -- \"$word\")); return\n"
      "  fi\n"
      "  case \"${COMP_WORDS[1]} $previous\" in\n";
  std::string flags = "  case \"${COMP_WORDS[1]}\" in\n";
  for (const Command& command : AllCommands()) {
    std::vector<std::string> words = {"--help"};
    for (const OptionInfo& option : OptionsOf(command)) {
      if (option.is_positional()) continue;
      for (const std::string& spelling : Spellings(option)) {
        words.push_back(spelling);
        if (option.choices.empty()) continue;
        script +=
            fmt::format("    '{} {}') COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); return ;;\n",
                        command.name, spelling, Joined(option.choices));
      }
    }
    flags += fmt::format("    {}) flags=\"{}\" ;;\n", command.name, Joined(words));
  }
  return script + "  esac\n  local flags=\"\"\n" + flags +
         "  esac\n"
         "  case \"$word\" in\n"
         "    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$word\")) ;;\n"
         "    *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
         "  esac\n"
         "}\n"
         "complete -o filenames -F _smoe smoe\n";
}

// Inside single quotes of zsh and fish.
std::string Quoted(const std::string& text) {
  std::string quoted;
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted;
}

// Inside _arguments' brackets, a colon or bracket would end the text.
std::string ZshText(const std::string& text) {
  std::string escaped;
  for (char c : Quoted(text)) {
    if (c == ':' || c == '[' || c == ']') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string ZshScript() {
  std::string script = "#compdef smoe\n_smoe() {\n  local -a commands\n  commands=(\n";
  for (const Command& command : AllCommands()) {
    script += fmt::format("    '{}:{}'\n", command.name, ZshText(command.summary));
  }
  script +=
      "  )\n  if (( CURRENT == 2 )); then _describe command commands; return; fi\n"
      "  local command=$words[2]\n  shift words; (( CURRENT-- ))\n  case $command in\n";
  for (const Command& command : AllCommands()) {
    script += fmt::format("    {}) _arguments", command.name);
    for (const OptionInfo& option : OptionsOf(command)) {
      if (option.is_positional()) continue;
      for (const std::string& spelling : Spellings(option)) {
        script += fmt::format(" '{}[{}]", spelling, ZshText(option.help));
        if (!option.choices.empty()) script += fmt::format(":word:({})", Joined(option.choices));
        if (option.choices.empty() && !option.value_name.empty()) script += ":value:_files";
        script += "'";
      }
    }
    script += " '*:file:_files' ;;\n";
  }
  return script + "  esac\n}\n_smoe \"$@\"\n";
}

std::string FishScript() {
  std::string script = "complete -c smoe -n __fish_use_subcommand -f\n";
  for (const Command& command : AllCommands()) {
    script += fmt::format("complete -c smoe -n __fish_use_subcommand -a {} -d '{}'\n", command.name,
                          Quoted(command.summary));
    for (const OptionInfo& option : OptionsOf(command)) {
      if (option.is_positional()) continue;
      script += fmt::format("complete -c smoe -n '__fish_seen_subcommand_from {}'", command.name);
      for (const std::string& spelling : Spellings(option)) {
        const bool is_long = spelling.starts_with("--");
        script += fmt::format(" -{} {}", is_long ? "l" : "s", spelling.substr(is_long ? 2 : 1));
      }
      if (!option.choices.empty()) script += fmt::format(" -x -a '{}'", Joined(option.choices));
      if (option.choices.empty() && !option.value_name.empty()) script += " -r";
      script += fmt::format(" -d '{}'\n", Quoted(option.help));
    }
  }
  return script;
}

}  // namespace

Runner DefineCompletions(Arguments& arguments) {
  auto shell = std::make_shared<std::string>();
  arguments.Positional("SHELL", shell.get(), "bash, zsh or fish");
  return [shell](Console& console) -> Result<ExitCode> {
    if (*shell == "bash") {
      console.Print("{}", BashScript());
    } else if (*shell == "zsh") {
      console.Print("{}", ZshScript());
    } else if (*shell == "fish") {
      console.Print("{}", FishScript());
    } else {
      return Invalid("SHELL: \"{}\", expected bash, zsh or fish", *shell);
    }
    return ExitCode::kOk;
  };
}

}  // namespace smoe::cli
