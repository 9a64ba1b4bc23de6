// smoe inspect MODEL [--json] [--experts]
//
// Everything that is known about a model file without running it: for a vault its header, arch
// block, table and annex; for a record store its manifest, records and files; for every kind of
// MODEL the configuration that would be used, which
// layers are sparse, and each decision and warning on the way.
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "cli/model_options.h"
#include "store/records/record_folder.h"
#include "store/stripe/stripe.h"
#include "store/vault/vault.h"

namespace smoe::cli {

namespace {

struct Options {
  ModelOptions model;
  bool json = false;
  bool experts = false;
};

Json DescribeConfig(const checkpoint::ModelConfig& config) {
  Json json;
  json.Set("model_type", config.model_type)
      .Set("hidden_size", config.hidden_size)
      .Set("num_hidden_layers", config.num_hidden_layers)
      .Set("num_attention_heads", config.num_attention_heads)
      .Set("num_key_value_heads", config.num_key_value_heads)
      .Set("head_dim", config.head_dim)
      .Set("rotary_dims",
           fmt::format("{} of {}",
                       static_cast<uint32_t>(config.rope.partial_rotary_factor * config.head_dim),
                       config.head_dim))
      .Set("rope", config.rope.type == checkpoint::RopeType::kYarn ? "yarn" : "default")
      .Set("rope_theta", config.rope.theta)
      .Set("vocab_size", config.vocab_size)
      .Set("max_position_embeddings", config.max_position_embeddings)
      .Set("num_experts", config.num_experts)
      .Set("num_experts_per_tok", config.num_experts_per_tok)
      .Set("moe_intermediate_size", config.moe_intermediate_size)
      .Set("shared_expert_intermediate_size", config.shared_expert_intermediate_size)
      .Set("norm_topk_prob", config.norm_topk_prob)
      .Set("sliding_window", config.sliding_window);
  return json;
}

std::string TemplateState(const text::TextModel& text) {
  if (text.template_sources().empty()) return "none";
  const Status compiled = text.template_status();
  return compiled ? "compiles" : compiled.error().message();
}

Json DescribeText(const text::TextModel& text) {
  Json json;
  json.Set("tokenizer", text.tokenizer() == nullptr
                            ? Json("none: ids in, ids out")
                            : Json(fmt::format("{} tokens", text.tokenizer()->vocab_size())));
  Json stops{Json::Array()};
  for (const text::StopId& stop : text.stop_ids()) {
    Json entry;
    entry.Set("id", stop.id).Set("token", stop.token);
    stops.Append(entry.Set("sources", Json::ListOf(stop.sources)));
  }
  Json templates{Json::Array()};
  for (const auto& [name, source] : text.template_sources())
    templates.Append(fmt::format("{}: {}", name, source));
  json.Set("stop_ids", std::move(stops))
      .Set("prefix_ids", Json::ListOf(text.prefix_ids()))
      .Set("prefix_source", text.prefix_source())
      .Set("chat_templates", std::move(templates))
      .Set("template_status", TemplateState(text))
      .Set("notices", Json::ListOf(text.notices()));
  return json;
}

// The parts of a model that can be opened as a whole.
Json DescribeModel(const store::ModelFiles& files) {
  Json json;
  json.Set("config", DescribeConfig(files.config))
      .Set("layers", checkpoint::LayerKindsText(files.facts.layer_is_sparse))
      .Set("qk_norm", files.facts.has_qk_norm)
      .Set("tied_head", files.facts.head_is_tied)
      .Set("experts", files.experts->format_name())
      .Set("expert_count", files.experts->expert_count())
      .Set("direct_reads", files.experts->direct_io());
  const auto text = store::LoadText(files.side_files, files.path);
  json.Set("text", text ? DescribeText(*text) : Json("not usable: " + text.error().message()));
  json.Set("decisions", Json::ListOf(files.decisions))
      .Set("warnings", Json::ListOf(files.warnings));
  return json;
}

// A scalar, or a short list of scalars, on one line; nullopt for what needs lines of its own.
std::optional<std::string> OneLine(const Json& value) {
  if (const std::string* text = value.AsString()) return text->empty() ? "-" : Printable(*text);
  if (value.is_null()) return "-";
  const Json::Array* array = value.AsArray();
  if (value.is_object() && !value.AsObject()->empty()) return std::nullopt;
  if (array == nullptr) return value.Dump();
  std::string line;
  for (const Json& item : *array) {
    if (!item.is_number()) return array->empty() ? std::optional<std::string>("-") : std::nullopt;
    line += (line.empty() ? "" : ", ") + item.Dump();
  }
  return line.empty() ? "-" : line;
}

void PrintTree(const Json& value, size_t depth, Console& console);

void PrintList(const Json::Array& list, size_t depth, Console& console) {
  for (const Json& item : list) {
    if (const auto line = OneLine(item)) {
      console.Print("{:{}}{}\n", "", 2 * depth, *line);
    } else if (item.is_object()) {
      std::string line_text;
      for (const auto& [key, member] : *item.AsObject()) {
        line_text += fmt::format("{}{} {}", line_text.empty() ? "" : "  ", Printable(key),
                                 OneLine(member).value_or(Printable(member.Dump())));
      }
      console.Print("{:{}}{}\n", "", 2 * depth, line_text);
    } else {
      PrintTree(item, depth, console);
    }
  }
}

// JSON as indented "key  value" lines, for people.
void PrintTree(const Json& value, size_t depth, Console& console) {
  constexpr size_t kKeyWidth = 36;
  for (const auto& [key, member] : *value.AsObject()) {
    if (const auto line = OneLine(member)) {
      console.Print("{:{}}{:<{}} {}\n", "", 2 * depth, Printable(key), kKeyWidth - 2 * depth,
                    *line);
      continue;
    }
    console.Print("{:{}}{}\n", "", 2 * depth, Printable(key));
    if (const Json::Array* list = member.AsArray()) {
      PrintList(*list, depth + 1, console);
    } else {
      PrintTree(member, depth + 1, console);
    }
  }
}

Result<ExitCode> Inspect(const Options& options, Console& console) {
  Json json;
  std::string model = options.model.model;
  std::error_code ignored;
  SMOE_TRY(store::CheckModelExists(model));
  Json stripe;
  if (store::stripe::IsStripeFile(model)) {
    SMOE_TRY_ASSIGN(const auto striped, store::stripe::ReadStripe(model));
    stripe = store::stripe::Describe(striped);
    model = striped.model;
    SMOE_TRY(store::CheckModelExists(model));
  }
  const bool is_store = store::records::IsRecordFolder(model);
  const bool is_folder = !is_store && std::filesystem::is_directory(model, ignored);
  if (is_store) {
    SMOE_TRY_ASSIGN(const auto folder, store::records::OpenRecordFolder(model));
    json = store::records::Describe(folder, options.experts);
  } else if (is_folder) {
    json.Set("folder", model);
  } else {
    SMOE_TRY_ASSIGN(const auto vault, store::vault::OpenVault(model));
    json = store::vault::Describe(vault, options.experts);
  }
  if (!stripe.is_null()) json.Set("stripe", std::move(stripe));
  auto files = store::OpenModelFiles(options.model.model, options.model.files);
  if (files) {
    json.Set("model", DescribeModel(*files));
  } else if (is_folder || files.error().code() == ErrorCode::kCorrupt) {
    return Unexpected(std::move(files.error()));
  } else {
    // Experts are worth looking at even where they cannot run: partial, or without their trunk.
    json.Set("model", "cannot run: " + files.error().message());
  }
  if (options.json) {
    console.Print("{}\n", json.Dump(2));
  } else {
    PrintTree(json, 0, console);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineInspect(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  DefineModel(arguments, &options->model);
  arguments.Flag("--json", &options->json, "As JSON");
  arguments.Flag("--experts", &options->experts, "Also the whole table of experts");
  DefineFileOptions(arguments, &options->model);
  return [options](Console& console) { return Inspect(*options, console); };
}

}  // namespace smoe::cli
