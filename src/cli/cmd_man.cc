// smoe man
//
// The manual page, made from the same list of options as the help.
#include "cli/command.h"
#include "cli/version.h"

namespace smoe::cli {

namespace {

// roff: a backslash, a dash and a line that begins with a dot or quote need an escape.
std::string Roff(const std::string& text) {
  std::string out;
  bool at_line_start = true;
  for (char c : text) {
    if (at_line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') out += '\\';
    if (c == '-') out += '\\';
    out += c;
    at_line_start = c == '\n';
  }
  return out;
}

std::string OptionText(const OptionInfo& option) {
  std::string head = Roff(option.flags);
  if (!option.value_name.empty() && !option.is_positional())
    head += " \\fI" + option.value_name + "\\fR";
  std::string text = Roff(option.help);
  for (size_t i = 0; i < option.choices.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? " (" : ", ", Roff(option.choices[i]));
  }
  if (!option.choices.empty()) text += ")";
  return fmt::format(".TP\n\\fB{}\\fR\n{}\n", head, text);
}

std::string CommandText(const Command& command) {
  Arguments arguments;
  command.define(arguments);
  std::string text = fmt::format(".SS smoe {}\n{}.\n", Roff(command.name), Roff(command.summary));
  for (const OptionInfo& option : arguments.options()) text += OptionText(option);
  return text + fmt::format(".PP\nExample:\n.PP\n.nf\n.RS\n{}\n.RE\n.fi\n", Roff(command.example));
}

}  // namespace

Runner DefineMan(Arguments&) {
  return [](Console& console) -> Result<ExitCode> {
    console.Print(
        ".TH SMOE 1 \"\" \"smoe {}\" \"User Commands\"\n"
        ".SH NAME\nsmoe \\- run Mixture\\-of\\-Experts language models larger than memory\n"
        ".SH SYNOPSIS\n\\fBsmoe\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR...]\n"
        ".SH DESCRIPTION\nsmoe runs Mixture\\-of\\-Experts language models on ordinary CPUs and "
        "reads the experts that a token needs from the drive while it computes. MODEL is a .smoe "
        "vault or a Hugging Face folder. Results go to stdout, all else to stderr.\n"
        ".SH COMMANDS\n",
        kVersion);
    for (const Command& command : AllCommands()) console.Print("{}", CommandText(command));
    console.Print(
        ".SH EXIT STATUS\n"
        ".TP\n0\ndone\n.TP\n1\na file is damaged or contradicts itself\n"
        ".TP\n2\nwrong arguments, or a request that cannot be met as it is\n"
        ".TP\n3\nvalid, but not something this build does\n"
        ".TP\n4\nthe drive or the system refused\n"
        ".TP\n5\nmemory, disk space or slots ran out\n.TP\n130\ninterrupted\n"
        ".SH ENVIRONMENT\n"
        ".TP\nSMOE_ISA\nthe kernel table to use (see smoe version); default: the best\n");
    return ExitCode::kOk;
  };
}

}  // namespace smoe::cli
