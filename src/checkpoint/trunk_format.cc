#include "checkpoint/trunk_format.h"

#include <algorithm>

#include "checkpoint/expert_names.h"

namespace smoe::checkpoint {

namespace {

using tensor::DType;
using tensor::WeightFormat;

constexpr TrunkFormat kFormats[] = {TrunkFormat::kSource, TrunkFormat::kBf16, TrunkFormat::kInt8,
                                    TrunkFormat::kQ4};

std::optional<TrunkFormat> FormatNamed(std::string_view name) {
  for (const TrunkFormat format : kFormats) {
    if (name == TrunkFormatName(format)) return format;
  }
  return std::nullopt;
}

std::optional<size_t> PartNamed(std::string_view name) {
  for (size_t i = 0; i < kTrunkPartCount; ++i) {
    if (name == TrunkPartName(static_cast<TrunkPart>(i))) return i;
  }
  return std::nullopt;
}

struct NamedPart {
  std::string_view tail;  // of the stem, below "layers.N."
  TrunkPart part;
};
constexpr NamedPart kLayerParts[] = {
    {"self_attn.q_proj", TrunkPart::kAttention},
    {"self_attn.k_proj", TrunkPart::kAttention},
    {"self_attn.v_proj", TrunkPart::kAttention},
    {"self_attn.o_proj", TrunkPart::kOutput},
};
// Networks of three matrices: a dense layer's own, and the shared expert's of the families.
constexpr std::string_view kNetworks[] = {"mlp.", "mlp.shared_expert.", "mlp.shared_experts.",
                                          "mlp.shared_mlp."};
constexpr std::string_view kNetworkParts[] = {"gate_proj", "up_proj", "down_proj"};

bool IsOfNetwork(std::string_view rest) {
  for (const std::string_view network : kNetworks) {
    if (!rest.starts_with(network)) continue;
    const std::string_view last = rest.substr(network.size());
    if (std::find(std::begin(kNetworkParts), std::end(kNetworkParts), last) !=
        std::end(kNetworkParts)) {
      return true;
    }
  }
  return false;
}

}  // namespace

const char* TrunkFormatName(TrunkFormat format) {
  switch (format) {
    case TrunkFormat::kSource:
      return "source";
    case TrunkFormat::kBf16:
      return "bf16";
    case TrunkFormat::kInt8:
      return "int8";
    case TrunkFormat::kQ4:
      return "q4";
  }
  return "unknown";
}

const char* TrunkPartName(TrunkPart part) {
  switch (part) {
    case TrunkPart::kEmbedding:
      return "embedding";
    case TrunkPart::kHead:
      return "head";
    case TrunkPart::kAttention:
      return "attention";
    case TrunkPart::kOutput:
      return "output";
    case TrunkPart::kDense:
      return "dense";
  }
  return "unknown";
}

TrunkFormats TrunkFormats::All(TrunkFormat format) {
  TrunkFormats formats;
  formats.of.fill(format);
  return formats;
}

Result<TrunkFormats> ParseTrunkFormats(std::string_view option, std::string_view text) {
  const auto refuse = [&](std::string_view word) {
    return Invalid(
        "{} {}: \"{}\", expected one of source, bf16, int8, q4, and behind it PART=FORMAT for "
        "parts "
        "that differ (embedding, head, attention, output, dense), as in int8,head=bf16",
        option, text, word);
  };
  const std::string_view first = text.substr(0, text.find(','));
  const auto common = FormatNamed(first);
  if (!common) return refuse(first);
  TrunkFormats formats = TrunkFormats::All(*common);
  for (size_t at = first.size(); at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string_view word = text.substr(at + 1, end - at - 1);
    const size_t equals = std::min(word.find('='), word.size());
    const auto part = PartNamed(word.substr(0, equals));
    const auto format = FormatNamed(word.substr(std::min(equals + 1, word.size())));
    if (!part || !format) return refuse(word);
    formats.of[*part] = *format;
    at = end;
  }
  return formats;
}

std::string TrunkFormatsText(const TrunkFormats& formats) {
  TrunkFormat most = formats.of[0];
  const auto count = [&](TrunkFormat format) {
    return std::count(formats.of.begin(), formats.of.end(), format);
  };
  for (const TrunkFormat format : kFormats) {
    if (count(format) > count(most)) most = format;
  }
  std::string text = TrunkFormatName(most);
  for (size_t i = 0; i < kTrunkPartCount; ++i) {
    if (formats.of[i] == most) continue;
    text += fmt::format(",{}={}", TrunkPartName(static_cast<TrunkPart>(i)),
                        TrunkFormatName(formats.of[i]));
  }
  return text;
}

std::optional<TrunkPart> FindTrunkPart(std::string_view stem, std::string_view prefix,
                                       uint32_t layer_count) {
  if (stem == "lm_head") return TrunkPart::kHead;
  if (stem == fmt::format("{}embed_tokens", prefix)) return TrunkPart::kEmbedding;
  const auto layer = ParseLayerName(stem);
  if (!layer || layer->prefix != prefix || layer->layer_index >= layer_count) return std::nullopt;
  for (const NamedPart& named : kLayerParts) {
    if (layer->rest == named.tail) return named.part;
  }
  if (IsOfNetwork(layer->rest)) return TrunkPart::kDense;
  return std::nullopt;
}

std::optional<WeightFormat> FormatOf(DType dtype) {
  if (dtype == DType::kF32) return WeightFormat::kF32;
  if (dtype == DType::kF16) return WeightFormat::kF16;
  if (dtype == DType::kBF16) return WeightFormat::kBF16;
  return std::nullopt;
}

WeightFormat ChooseFormat(TrunkFormat asked, const LinearWeight& weight) {
  if (weight.kind == LinearKind::kQ4) return WeightFormat::kSmoeQ4;
  const bool fits_q4 = weight.shape.at(1) % kQ4Group == 0;
  if (asked == TrunkFormat::kQ4 && fits_q4) return WeightFormat::kSmoeQ4;
  if (weight.kind == LinearKind::kInt8) return WeightFormat::kInt8;
  if (asked == TrunkFormat::kInt8 || asked == TrunkFormat::kQ4) return WeightFormat::kInt8;
  if (asked == TrunkFormat::kBf16) return WeightFormat::kBF16;
  if (weight.kind != LinearKind::kFloat) return WeightFormat::kF32;
  return FormatOf(weight.codes.info->dtype).value_or(WeightFormat::kF32);
}

}  // namespace smoe::checkpoint
