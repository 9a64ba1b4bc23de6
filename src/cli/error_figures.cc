#include "cli/error_figures.h"

#include <fmt/format.h>

#include <cmath>

#include "convert/shatter_plan.h"

namespace smoe::cli {

namespace {

std::string Line(const std::string& name, const convert::ProjErrors& errors) {
  std::string line = fmt::format("{:<6}", name);
  for (const auto& error : errors) line += fmt::format("{:>11.4g}", error.Rmse());
  for (const auto& error : errors) line += fmt::format("{:>10.4g}", error.error_max);
  for (const auto& error : errors) {
    line += std::isfinite(error.SnrDb()) ? fmt::format("{:>7.2f}", error.SnrDb())
                                         : fmt::format("{:>7}", "exact");
  }
  return line + "\n";
}

}  // namespace

convert::ProjErrors SumLayers(const std::vector<convert::LayerErrors>& layers) {
  convert::ProjErrors sum;
  for (const convert::LayerErrors& layer : layers) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i].Add(layer.projs[i]);
  }
  return sum;
}

std::string ProjErrorsText(const convert::ProjErrors& errors) {
  std::string text = fmt::format("{:<8}{:>14}{:>14}{:>10}\n", "tensor", "RMSE", "largest", "SNR");
  for (size_t p = 0; p < errors.size(); ++p) {
    text += fmt::format("{:<8}{:>14.6g}{:>14.6g}{:>7.2f} dB\n",
                        checkpoint::ProjName(static_cast<checkpoint::Proj>(p)), errors[p].Rmse(),
                        errors[p].error_max, errors[p].SnrDb());
  }
  return text;
}

std::string LayerErrorsText(const std::vector<convert::LayerErrors>& layers) {
  std::string text =
      fmt::format("{:<6}{:>33}{:>30}{:>21}\n", "layer", "RMSE", "largest error", "SNR, dB");
  text += fmt::format("{:<6}", "");
  for (const int width : {11, 10, 7}) {
    for (const char* name : {"gate", "up", "down"}) text += fmt::format("{:>{}}", name, width);
  }
  text += "\n";
  for (const convert::LayerErrors& layer : layers) {
    text += Line(fmt::format("{}", layer.layer_index), layer.projs);
  }
  return text + Line("all", SumLayers(layers));
}

Json LayerErrorsJson(const std::vector<convert::LayerErrors>& layers) {
  Json::Array list;
  for (const convert::LayerErrors& layer : layers) {
    Json entry;
    entry.Set("layer", layer.layer_index);
    const Json errors = convert::ErrorsJson(layer.projs);
    for (const auto& [name, figures] : *errors.AsObject()) entry.Set(name, figures);
    list.push_back(std::move(entry));
  }
  Json json;
  json.Set("layers", Json(std::move(list)));
  json.Set("all", convert::ErrorsJson(SumLayers(layers)));
  return json;
}

}  // namespace smoe::cli
