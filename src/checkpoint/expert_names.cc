#include "checkpoint/expert_names.h"

#include <charconv>

#include "base/check.h"

namespace smoe::checkpoint {

namespace {

struct PartRow {
  ExpertNaming naming;
  ExpertPart part;
  std::string_view word;
};

constexpr PartRow kParts[] = {
    {ExpertNaming::kGateProj, ExpertPart::kGate, "gate_proj"},
    {ExpertNaming::kGateProj, ExpertPart::kUp, "up_proj"},
    {ExpertNaming::kGateProj, ExpertPart::kDown, "down_proj"},
    {ExpertNaming::kW123, ExpertPart::kGate, "w1"},
    {ExpertNaming::kW123, ExpertPart::kUp, "w3"},
    {ExpertNaming::kW123, ExpertPart::kDown, "w2"},
    {ExpertNaming::kStacked, ExpertPart::kGateUp, "gate_up_proj"},
    {ExpertNaming::kStacked, ExpertPart::kGate, "gate_proj"},
    {ExpertNaming::kStacked, ExpertPart::kUp, "up_proj"},
    {ExpertNaming::kStacked, ExpertPart::kDown, "down_proj"},
    {ExpertNaming::kLinear, ExpertPart::kGateUp, "input_linear"},
    {ExpertNaming::kLinear, ExpertPart::kDown, "output_linear"},
};

// Takes a number and the dot after it off the front of `text`.
std::optional<uint32_t> TakeIndex(std::string_view* text, uint32_t limit) {
  uint32_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop == end || *stop != '.' || value >= limit) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(stop - text->data()) + 1);
  return value;
}

// Where `component.` begins in a dotted name; npos: nowhere.
size_t FindComponent(std::string_view name, std::string_view component) {
  for (size_t at = 0; (at = name.find(component, at)) != std::string_view::npos; ++at) {
    const size_t end = at + component.size();
    if ((at == 0 || name[at - 1] == '.') && end < name.size() && name[end] == '.') return at;
  }
  return std::string_view::npos;
}

// True for the first word of `naming` that begins `text`, which then is the suffix.
bool TakePart(ExpertNaming naming, std::string_view text, ExpertName* out) {
  for (const PartRow& row : kParts) {
    if (row.naming != naming || !text.starts_with(row.word)) continue;
    const std::string_view suffix = text.substr(row.word.size());
    if (!suffix.empty() && suffix[0] != '.' && suffix[0] != '_') continue;
    out->naming = naming;
    out->part = row.part;
    out->suffix = suffix;
    return true;
  }
  return false;
}

// `rest` follows "experts." or "switch_mlp.".
bool ParseBelowExperts(std::string_view rest, ExpertName* out) {
  out->expert = TakeIndex(&rest, kExpertCountMax);
  if (out->expert) {
    // Whatever lies below a numbered expert belongs to it, even if we cannot name the part.
    return TakePart(ExpertNaming::kGateProj, rest, out) ||
           TakePart(ExpertNaming::kW123, rest, out) || true;
  }
  return TakePart(ExpertNaming::kStacked, rest, out);
}

}  // namespace

std::optional<LayerName> ParseLayerName(std::string_view name) {
  constexpr std::string_view kLayers = "layers";
  const size_t at = FindComponent(name, kLayers);
  if (at == std::string_view::npos) return std::nullopt;
  LayerName layer;
  layer.prefix = name.substr(0, at);
  layer.rest = name.substr(at + kLayers.size() + 1);
  const auto index = TakeIndex(&layer.rest, kLayerCountMax + 1);
  if (!index) return std::nullopt;
  layer.layer_index = *index;
  layer.is_mtp_module = FindComponent(layer.prefix, "mtp") != std::string_view::npos;
  return layer;
}

std::optional<ExpertName> ParseExpertName(std::string_view name) {
  const auto layer = ParseLayerName(name);
  if (!layer) return std::nullopt;
  ExpertName out;
  out.layer = *layer;
  const size_t rest_at = name.size() - layer->rest.size();
  for (const std::string_view component : {"experts", "switch_mlp"}) {
    const size_t at = FindComponent(layer->rest, component);
    if (at == std::string_view::npos) continue;
    out.stem = name.substr(0, rest_at + at + component.size());
    if (ParseBelowExperts(layer->rest.substr(at + component.size() + 1), &out)) return out;
    return std::nullopt;
  }
  constexpr std::string_view kGraniteBlock = "block_sparse_moe";
  const size_t at = FindComponent(layer->rest, kGraniteBlock);
  if (at == std::string_view::npos) return std::nullopt;
  out.stem = name.substr(0, rest_at + at + kGraniteBlock.size());
  if (!TakePart(ExpertNaming::kLinear, layer->rest.substr(at + kGraniteBlock.size() + 1), &out)) {
    return std::nullopt;
  }
  return out;
}

std::string_view PartWord(ExpertNaming naming, ExpertPart part) {
  for (const PartRow& row : kParts) {
    if (row.naming == naming && row.part == part) return row.word;
  }
  SMOE_CHECK(false);
  return {};
}

}  // namespace smoe::checkpoint
