// smoe tokenize MODEL [TEXT], smoe detokenize MODEL IDS
#include <memory>

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/token_ids.h"

namespace smoe::cli {

namespace {

struct Options {
  ModelOptions model;
  std::string input;
  bool special_as_text = false;
  bool skip_special = false;
  bool pieces = false;
  bool json = false;
};

// The argument, or all of standard input.
Result<std::string> Input(const Options& options, const Console& console) {
  if (!options.input.empty()) return options.input;
  return ReadAll(console.in);
}

Result<ExitCode> Tokenize(const Options& options, Console& console) {
  SMOE_TRY_ASSIGN(const store::ModelFiles files, OpenFiles(options.model));
  SMOE_TRY_ASSIGN(const text::TextModel text, store::LoadText(files.side_files, files.path));
  SMOE_TRY_ASSIGN(const text::Tokenizer* tokenizer, text.RequireTokenizer());
  SMOE_TRY_ASSIGN(const std::string input, Input(options, console));
  text::EncodeOptions encode;
  if (options.special_as_text) encode.parse = text::ParseTokens::kNotSpecial;
  SMOE_TRY_ASSIGN(const std::vector<uint32_t> ids, tokenizer->Encode(input, encode));
  if (options.json) {
    console.Print("{}\n", Json::ListOf(ids).Dump());
  } else if (!options.pieces) {
    console.Print("{}\n", TokenIdsText(ids));
  } else {
    for (const uint32_t id : ids) {
      SMOE_TRY_ASSIGN(const std::string piece, tokenizer->Decode({&id, 1}, false));
      console.Print("{}\t{}\n", id, Json(piece).Dump());
    }
  }
  return ExitCode::kOk;
}

Result<ExitCode> Detokenize(const Options& options, Console& console) {
  SMOE_TRY_ASSIGN(const std::string input, Input(options, console));
  SMOE_TRY_ASSIGN(const std::vector<uint32_t> ids, ParseTokenIds(input));
  SMOE_TRY_ASSIGN(const store::ModelFiles files, OpenFiles(options.model));
  SMOE_TRY_ASSIGN(const text::TextModel text, store::LoadText(files.side_files, files.path));
  SMOE_TRY_ASSIGN(const text::Tokenizer* tokenizer, text.RequireTokenizer());
  SMOE_TRY_ASSIGN(const std::string output, tokenizer->Decode(ids, options.skip_special));
  console.Print("{}\n", options.json ? Json(output).Dump() : output);
  return ExitCode::kOk;
}

}  // namespace

Runner DefineTokenize(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineModel(arguments, &options->model);
  arguments.OptionalPositional("TEXT", &options->input, "The text (default: standard input)");
  arguments.Flag("--special-as-text", &options->special_as_text,
                 "Special tokens in the text are ordinary text");
  arguments.Flag("--pieces", &options->pieces, "One line for each token, with its text");
  arguments.Flag("--json", &options->json, "As a JSON array");
  DefineFileOptions(arguments, &options->model);
  return [options](Console& console) { return Tokenize(*options, console); };
}

Runner DefineDetokenize(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineModel(arguments, &options->model);
  arguments.OptionalPositional("IDS", &options->input, "As 1,2,3 (default: standard input)");
  arguments.Flag("--skip-special", &options->skip_special, "Leave special tokens out");
  arguments.Flag("--json", &options->json, "As a JSON string");
  DefineFileOptions(arguments, &options->model);
  return [options](Console& console) { return Detokenize(*options, console); };
}

}  // namespace smoe::cli
