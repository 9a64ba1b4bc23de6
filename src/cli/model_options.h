// cli/model_options.h: the options of every command that opens or runs a model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/arguments.h"
#include "cli/console.h"
#include "engine/engine.h"
#include "store/model_files.h"
#include "store/model_text.h"

namespace smoe::cli {

struct ModelOptions {
  std::string model;  // empty: the bundled one, where the command allows it
  store::ModelFilesOptions files;
  std::optional<uint64_t> memory_bytes;
  std::optional<uint64_t> cache_bytes;
  std::optional<uint32_t> cache_experts;
  std::string io = "auto";
  uint32_t thread_count = 0;
  uint32_t chunk_tokens = 0;
  uint64_t context_tokens = 0;
  std::string arithmetic = "int8";
  std::string kv = "auto";
  std::string prefetch = "auto";
  std::string warm_start = "off";  // of the commands that DefineWarmStart is called for
  std::string trunk_format;        // empty: the engine's default
  bool buffered = false;
  bool verbose = false;
};

// The heading of the options that DefineEngineOptions adds.
inline constexpr char kEngineGroup[] =
    "Engine (only --arithmetic, --kv and --trunk-format change results)";

// MODEL, which must be given; or may be left out for the bundled one.
void DefineModel(Arguments& arguments, ModelOptions* options);
void DefineOptionalModel(Arguments& arguments, ModelOptions* options);
// --trunk, --config, --tokenizer, --verbose.
void DefineFileOptions(Arguments& arguments, ModelOptions* options);
// Those, and --cache, --cache-experts, --io, --threads, --chunk, --context, --arithmetic, --kv, ...
void DefineEngineOptions(Arguments& arguments, ModelOptions* options);
// The same for commands that take a list in place of one value: where a string is given, the
// option goes there, unread.
struct EngineLists {
  std::string* threads = nullptr;  // "1,2,4"
  std::string* memory = nullptr;   // "2G,4G,all"
};
void DefineEngineOptions(Arguments& arguments, ModelOptions* options, const EngineLists& lists);

// --warm-start, off by default: for commands whose experts are what the user will want again.
void DefineWarmStart(Arguments& arguments, ModelOptions* options);

// The vault of tiny-moe that was built and installed with the program.
// Errors: kInvalid saying where it was looked for.
Result<std::string> BundledModelPath();

// What OpenModelFiles is told.
store::ModelFilesOptions FilesOptions(const ModelOptions& options);

// Opens MODEL, or the bundled one where options.model is empty. Warnings go to the log, decisions
// too with --verbose.
Result<store::ModelFiles> OpenFiles(const ModelOptions& options);

// What Engine::Open is told. Errors: kInvalid for a --trunk-format that is none.
Result<engine::EngineOptions> ChooseEngineOptions(const ModelOptions& options, size_t batch_max,
                                                  bool evaluate);

// kInvalid if writing `out` would replace a file that is being read: one of `more`, of the model's
// parts, or any that is in the folder of a model that is one.
Status CheckSparesModel(const std::string& out, const store::ModelFiles& files,
                        const ModelOptions& options, std::vector<std::string> more);

// Opens the engine over `files`; logs its choices with --verbose.
Result<std::unique_ptr<engine::Engine>> OpenEngine(store::ModelFiles files,
                                                   const ModelOptions& options, size_t batch_max,
                                                   bool evaluate);

}  // namespace smoe::cli
