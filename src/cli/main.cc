#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/command.h"

int main(int argc, char** argv) {
  // A reader that goes away (smoe ... | head) is an error of write, not a death.
  std::signal(SIGPIPE, SIG_IGN);
  // So is a limit on the size of files (ulimit -f): what is written stays for --resume.
  std::signal(SIGXFSZ, SIG_IGN);
  smoe::cli::HoldStandardStreams();
  smoe::cli::Console console;
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    return smoe::cli::RunProgram(arguments, console);
  } catch (const std::bad_alloc&) {
    // The large buffers are asked for with their sizes in the message; this is one of the others.
    console.Note(
        "smoe: memory: the system refused an allocation; free some, raise ulimit -v, or lower "
        "--cache, --context or --threads\n");
    return static_cast<int>(smoe::cli::ExitCode::kExhausted);
  } catch (const std::exception& failure) {
    console.Note("smoe: unexpected: {} (a bug in smoe; please report it)\n", failure.what());
    return static_cast<int>(smoe::cli::ExitCode::kIo);
  }
}
