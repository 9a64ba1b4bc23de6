#include "cli/model_options.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "engine/hot_set.h"
#include "io/atomic_file.h"

namespace smoe::cli {

namespace {

constexpr char kBundledModel[] = "share/smoe/tiny-moe.smoe";

io::ReadBackend BackendNamed(const std::string& name) {
  if (name == "uring") return io::ReadBackend::kUring;
  return name == "threads" ? io::ReadBackend::kThreads : io::ReadBackend::kAuto;
}

}  // namespace

void DefineModel(Arguments& arguments, ModelOptions* options) {
  arguments.Positional("MODEL", &options->model,
                       "A .smoe vault, a record store or a checkpoint folder");
}

void DefineOptionalModel(Arguments& arguments, ModelOptions* options) {
  arguments.OptionalPositional(
      "MODEL", &options->model,
      "A .smoe vault, a record store or a checkpoint folder (default: tiny-moe)");
}

void DefineFileOptions(Arguments& arguments, ModelOptions* options) {
  arguments.Group("Parts of the model (found by themselves where they lie in or beside it)");
  arguments.Option("--trunk", &options->files.trunk, "FILE",
                   "Trunk: a safetensors file or a checkpoint folder");
  arguments.Option("--config", &options->files.config, "FILE", "config.json, or a folder with it");
  arguments.Option("--tokenizer", &options->files.tokenizer, "FILE",
                   "tokenizer.json, or a folder with it");
  arguments.Flag("-v,--verbose", &options->verbose, "Say what was decided, and why");
  arguments.Group("");
}

void DefineEngineOptions(Arguments& arguments, ModelOptions* options) {
  DefineEngineOptions(arguments, options, {});
}

void DefineEngineOptions(Arguments& arguments, ModelOptions* options, const EngineLists& lists) {
  DefineFileOptions(arguments, options);
  arguments.Group(kEngineGroup);
  if (lists.memory == nullptr) {
    arguments.Option("--memory", SizeOption{&options->memory_bytes}, "SIZE",
                     "Memory for the whole process, as 8GiB or 7.5GB (default: what is free)");
  } else {
    arguments.Option("--memory", lists.memory, "LIST",
                     "Memory for the whole process, as 1500M,2G,all (all: for all experts)");
  }
  arguments.Option("--cache", SizeOption{&options->cache_bytes}, "SIZE",
                   "Memory for experts, as 4GiB (default: what fits)");
  arguments.Option("--cache-experts", &options->cache_experts, "N", "The same, counted in experts");
  arguments.Choice("--io", &options->io, {"auto", "uring", "threads"}, "How experts are read");
  arguments.Flag("--buffered", &options->buffered, "Read through the page cache");
  arguments.Choice("--prefetch", &options->prefetch, {"auto", "off", "on"},
                   "Read what the next layer may want; auto: where timing shows that it pays");
  if (lists.threads == nullptr) {
    arguments.Option("--threads", &options->thread_count, "N",
                     "Compute threads (default: physical cores)");
  } else {
    arguments.Option("--threads", lists.threads, "LIST",
                     "Compute threads, as 2 or 1,2,4: measured one after the other (default: "
                     "physical cores)");
  }
  arguments.Option("--chunk", &options->chunk_tokens, "N",
                   "Prompt tokens in one pass through the layers (default: what pays)");
  arguments.Option("--context", &options->context_tokens, "N",
                   "Room for tokens (default: the model's, or what fits)");
  arguments.Choice("--arithmetic", &options->arithmetic, {"int8", "f32"},
                   "int8: activations quantised; f32: the reference");
  arguments.Choice("--kv", &options->kv, {"auto", "f32", "f16", "int8"},
                   "How keys and values are kept; auto: f16, and f32 with f32 arithmetic");
  arguments.Option("--trunk-format", &options->trunk_format, "FORMAT",
                   "Matrices of the trunk in memory: source, bf16, int8 or q4; then parts that "
                   "differ, as int8,head=bf16 (default: int8; source with --arithmetic f32)");
  arguments.Group("");
}

void DefineWarmStart(Arguments& arguments, ModelOptions* options) {
  arguments.Group(kEngineGroup);
  options->warm_start = "off";
  arguments.Choice("--warm-start", &options->warm_start, {"off", "on"},
                   "Read the last run's experts while the drive is idle; keep this run's");
  arguments.Group("");
}

Result<std::string> BundledModelPath() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto beside = program.parent_path() / kBundledModel;
  if (std::filesystem::exists(beside, ignored)) return beside.string();
  const auto installed = program.parent_path().parent_path() / kBundledModel;
  if (std::filesystem::exists(installed, ignored)) return installed.string();
  return Invalid(
      "MODEL: none given, and the bundled one is neither {} nor {}; name a vault or a "
      "checkpoint folder",
      beside.string(), installed.string());
}

store::ModelFilesOptions FilesOptions(const ModelOptions& options) {
  store::ModelFilesOptions files = options.files;
  files.direct_io = !options.buffered;
  return files;
}

Result<store::ModelFiles> OpenFiles(const ModelOptions& options) {
  std::string path = options.model;
  if (path.empty()) {
    SMOE_TRY_ASSIGN(path, BundledModelPath());
  }
  SMOE_TRY_ASSIGN(store::ModelFiles files, store::OpenModelFiles(path, FilesOptions(options)));
  for (const std::string& warning : files.warnings) LogWarning("{}", Printable(warning));
  return files;
}

Status CheckSparesModel(const std::string& out, const store::ModelFiles& files,
                        const ModelOptions& options, std::vector<std::string> more) {
  namespace fs = std::filesystem;
  for (const io::File& file : files.trunk.files()) more.push_back(file.path());
  const store::ModelFilesOptions& parts = options.files;
  for (const std::string& part : {files.path, parts.trunk, parts.config, parts.tokenizer}) {
    if (part.empty()) continue;
    more.push_back(part);
    std::error_code ignored;
    const fs::path folder = fs::path(out).parent_path();
    if (!fs::exists(out, ignored) || !fs::is_directory(part, ignored) ||
        !fs::equivalent(folder.empty() ? "." : folder, part, ignored)) {
      continue;
    }
    return Invalid("{}: is there, in the folder of the model; name another file to write", out);
  }
  return io::CheckNoInput(out, more);
}

Result<engine::EngineOptions> ChooseEngineOptions(const ModelOptions& options, size_t batch_max,
                                                  bool evaluate) {
  engine::EngineOptions engine_options;
  engine_options.memory_bytes = options.memory_bytes;
  engine_options.thread_count = options.thread_count;
  engine_options.chunk_tokens = options.chunk_tokens;
  engine_options.batch_max = batch_max;
  engine_options.context_tokens = options.context_tokens;
  engine_options.cache_bytes = options.cache_bytes;
  engine_options.cache_experts = options.cache_experts;
  engine_options.io = BackendNamed(options.io);
  engine_options.arithmetic =
      options.arithmetic == "f32" ? experts::Arithmetic::kF32 : experts::Arithmetic::kInt8;
  if (options.prefetch == "off") engine_options.prefetch = experts::PrefetchMode::kOff;
  if (options.prefetch == "on") engine_options.prefetch = experts::PrefetchMode::kOn;
  if (options.kv == "f32") engine_options.kv = kernels::KvKind::kF32;
  if (options.kv == "f16") engine_options.kv = kernels::KvKind::kF16;
  if (options.kv == "int8") engine_options.kv = kernels::KvKind::kInt8;
  if (const char* isa = std::getenv("SMOE_ISA")) engine_options.isa = isa;
  if (!options.trunk_format.empty()) {
    SMOE_TRY_ASSIGN(engine_options.trunk_formats,
                    checkpoint::ParseTrunkFormats("--trunk-format", options.trunk_format));
  }
  engine_options.evaluate = evaluate;
  return engine_options;
}

Result<std::unique_ptr<engine::Engine>> OpenEngine(store::ModelFiles files,
                                                   const ModelOptions& options, size_t batch_max,
                                                   bool evaluate) {
  SMOE_TRY_ASSIGN(engine::EngineOptions engine_options,
                  ChooseEngineOptions(options, batch_max, evaluate));
  if (options.warm_start == "on") {
    SMOE_TRY_ASSIGN(engine_options.hot_set_path, engine::HotSetPath(files));
  }
  SMOE_TRY_ASSIGN(auto engine, engine::Engine::Open(std::move(files), engine_options));
  if (options.verbose) {
    for (const std::string& choice : engine->choices()) LogInfo("{}", Printable(choice));
  }
  return engine;
}

}  // namespace smoe::cli
