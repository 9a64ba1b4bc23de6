// cli/command.h: what a subcommand is, and the list of all of them.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "base/result.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "cli/exit_code.h"

namespace smoe::cli {

// Runs with the options that Define bound. An error is printed as "smoe NAME: message" and becomes
// the exit code of its kind.
using Runner = std::function<Result<ExitCode>(Console& console)>;

struct Command {
  const char* name;
  const char* group;    // heading in `smoe --help`
  const char* summary;  // one line
  const char* example;  // shown below the help, a line or more
  Runner (*define)(Arguments& arguments);
};

// In the order of the help.
std::span<const Command> AllCommands();

// Parses `arguments` (without the program's name), runs the command, returns the exit code.
// Only main() and tests call it.
int RunProgram(std::span<const std::string> arguments, Console& console);

// One function a command file, bound in commands.cc.
Runner DefineRun(Arguments& arguments);
Runner DefineChat(Arguments& arguments);
Runner DefineLogits(Arguments& arguments);
Runner DefinePerplexity(Arguments& arguments);
Runner DefineTrace(Arguments& arguments);
Runner DefineReplay(Arguments& arguments);
Runner DefinePlan(Arguments& arguments);
Runner DefineShatter(Arguments& arguments);
Runner DefinePack(Arguments& arguments);
Runner DefineInspect(Arguments& arguments);
Runner DefineVerify(Arguments& arguments);
Runner DefineUpgrade(Arguments& arguments);
Runner DefineStripe(Arguments& arguments);
Runner DefineRecover(Arguments& arguments);
Runner DefineExtractTrunk(Arguments& arguments);
Runner DefineConvert(Arguments& arguments);
Runner DefineSynth(Arguments& arguments);
Runner DefineCompare(Arguments& arguments);
Runner DefineBench(Arguments& arguments);
Runner DefineDoctor(Arguments& arguments);
Runner DefineTokenize(Arguments& arguments);
Runner DefineDetokenize(Arguments& arguments);
Runner DefineTemplate(Arguments& arguments);
Runner DefineVersion(Arguments& arguments);
Runner DefineCompletions(Arguments& arguments);
Runner DefineMan(Arguments& arguments);

}  // namespace smoe::cli
