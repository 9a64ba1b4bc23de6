// smoe logits MODEL --tokens IDS --out FILE.safetensors [--router] [--hidden]
//
// Tensors: logits [T][V] f32; with --router router.LNN.ids [T][k] i32 (ascending) and
// router.LNN.weights [T][k] f32 for each sparse layer; with --hidden hidden.embed, hidden.LNN and
// hidden.norm [T][H] f32. Written piece by piece: memory does not grow with T.
#include <memory>

#include "checkpoint/safetensors_writer.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/token_ids.h"
#include "io/atomic_file.h"

namespace smoe::cli {

namespace {

struct Options {
  ModelOptions model;
  std::string tokens;
  std::string out;
  bool router = false;
  bool hidden = false;
  bool force = false;
};

// Where each tensor's next rows go.
class LogitFile {
 public:
  static Result<LogitFile> Create(const std::string& path, bool force,
                                  std::vector<checkpoint::TensorSpec> tensors) {
    SMOE_TRY_ASSIGN(auto layout, checkpoint::LayOutSafetensors(tensors, {{"format", "pt"}}));
    SMOE_TRY_ASSIGN(auto file, io::AtomicFile::Open(path, {.overwrite = force}));
    SMOE_TRY(file.file().WriteAt(0, AsBytes(layout.header)));
    return LogitFile(std::move(tensors), std::move(layout), std::move(file));
  }

  // Rows [first_row, ...) of the tensor `name`, 4 bytes an element.
  template <class T>
  Status WriteRows(const std::string& name, size_t first_row, std::span<const T> values) {
    static_assert(sizeof(T) == 4);
    size_t index = 0;
    while (tensors_[index].name != name) ++index;
    const uint64_t row_bytes = tensors_[index].shape.back() * sizeof(T);
    return file_.file().WriteAt(layout_.offsets[index] + first_row * row_bytes, AsBytes(values));
  }

  Status Commit() { return file_.Commit(); }

 private:
  LogitFile(std::vector<checkpoint::TensorSpec> tensors, checkpoint::SafetensorsLayout layout,
            io::AtomicFile file)
      : tensors_(std::move(tensors)), layout_(std::move(layout)), file_(std::move(file)) {}
  std::vector<checkpoint::TensorSpec> tensors_;
  checkpoint::SafetensorsLayout layout_;
  io::AtomicFile file_;
};

std::string LayerName(const char* kind, size_t layer) {
  return fmt::format("{}.L{:02}", kind, layer);
}

std::vector<checkpoint::TensorSpec> TensorList(const checkpoint::ModelConfig& config,
                                               const std::vector<bool>& sparse, uint64_t count,
                                               const Options& options) {
  using tensor::DType;
  std::vector<checkpoint::TensorSpec> list = {{"logits", DType::kF32, {count, config.vocab_size}}};
  const tensor::Shape routed = {count, config.num_experts_per_tok};
  const tensor::Shape hidden = {count, config.hidden_size};
  for (size_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (options.router && sparse[layer]) {
      list.push_back({LayerName("router", layer) + ".ids", DType::kI32, routed});
      list.push_back({LayerName("router", layer) + ".weights", DType::kF32, routed});
    }
    if (options.hidden) list.push_back({LayerName("hidden", layer), DType::kF32, hidden});
  }
  if (options.hidden) {
    list.push_back({"hidden.embed", DType::kF32, hidden});
    list.push_back({"hidden.norm", DType::kF32, hidden});
  }
  return list;
}

Status WriteStep(LogitFile& file, size_t first, std::span<const float> logits,
                 const model::StepTaps& taps, const Options& options) {
  SMOE_TRY(file.WriteRows("logits", first, logits));
  for (size_t layer = 0; layer < taps.layers.size(); ++layer) {
    const model::StepTaps::Layer& tap = taps.layers[layer];
    if (options.router && !tap.router_ids.empty()) {
      const std::string name = LayerName("router", layer);
      SMOE_TRY(file.WriteRows<uint32_t>(name + ".ids", first, tap.router_ids));
      SMOE_TRY(file.WriteRows<float>(name + ".weights", first, tap.router_weights));
    }
    if (options.hidden) {
      SMOE_TRY(file.WriteRows<float>(LayerName("hidden", layer), first, tap.hidden));
    }
  }
  if (!options.hidden) return Ok();
  SMOE_TRY(file.WriteRows<float>("hidden.embed", first, taps.hidden_embed));
  return file.WriteRows<float>("hidden.norm", first, taps.hidden_norm);
}

Result<ExitCode> WriteLogits(const Options& options, Console& console) {
  SMOE_TRY_ASSIGN(const std::vector<uint32_t> tokens, ParseTokenIds(options.tokens));
  SMOE_TRY_ASSIGN(store::ModelFiles files, OpenFiles(options.model));
  SMOE_TRY(CheckSparesModel(options.out, files, options.model, {}));
  const std::vector<bool> sparse = files.facts.layer_is_sparse;
  SMOE_TRY_ASSIGN(auto engine, OpenEngine(std::move(files), options.model, 1, true));
  SMOE_TRY_ASSIGN(LogitFile file,
                  LogitFile::Create(options.out, options.force,
                                    TensorList(engine->config(), sparse, tokens.size(), options)));
  const InterruptGuard guard;
  model::StepTaps want;
  want.want_router = options.router;
  want.want_hidden = options.hidden;
  const auto sink = [&](size_t first, std::span<const float> logits,
                        const model::StepTaps& taps) -> Status {
    if (InterruptGuard::Requested()) return Invalid("interrupted");
    return WriteStep(file, first, logits, taps, options);
  };
  if (Status done = engine->Evaluate(tokens, std::move(want), sink); !done) {
    return NotWritten(options.out, std::move(done.error()), console);
  }
  SMOE_TRY(file.Commit());
  console.Note("{}: {} positions, arithmetic {}, trunk {}\n", Printable(options.out), tokens.size(),
               options.model.arithmetic,
               checkpoint::TrunkFormatsText(engine->trunk_report().asked));
  return ExitCode::kOk;
}

}  // namespace

Runner DefineLogits(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineModel(arguments, &options->model);
  arguments.Option("--tokens", &options->tokens, "IDS",
                   "Required: token ids of the prompt, as 1,2,3");
  arguments.Option("--out", &options->out, "FILE", "Required: the safetensors file to write");
  arguments.Flag("--force", &options->force, "Replace FILE if it exists");
  arguments.Flag("--router", &options->router, "Also the experts chosen and their weights");
  arguments.Flag("--hidden", &options->hidden, "Also the hidden state after each layer");
  DefineEngineOptions(arguments, &options->model);
  return [options](Console& console) -> Result<ExitCode> {
    if (options->out.empty()) return Invalid("--out: missing, expected a file to write");
    return WriteLogits(*options, console);
  };
}

}  // namespace smoe::cli
