// cli/console_for_test.h: runs the program inside a test and keeps what it prints.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "cli/command.h"

namespace smoe::cli {

struct ProgramOutput {
  int code = 0;
  std::string out;
  std::string err;
};

inline std::string TakeText(std::FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file))
    text.push_back(static_cast<char>(c));
  std::fclose(file);
  return text;
}

// `input` is what a person would type.
inline ProgramOutput RunForTest(const std::vector<std::string>& arguments,
                                const std::string& input = "") {
  Console console{std::tmpfile(), std::tmpfile(), std::tmpfile()};
  std::fwrite(input.data(), 1, input.size(), console.in);
  std::rewind(console.in);
  ProgramOutput output;
  output.code = RunProgram(arguments, console);
  std::fclose(console.in);
  output.out = TakeText(console.out);
  output.err = TakeText(console.err);
  return output;
}

}  // namespace smoe::cli
