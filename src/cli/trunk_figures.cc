#include "cli/trunk_figures.h"

namespace smoe::cli {

Json TrunkJson(const model::TrunkReport& report) {
  Json parts;
  for (size_t i = 0; i < report.parts.size(); ++i) {
    const model::TrunkPartReport& part = report.parts[i];
    if (part.matrix_count == 0) continue;
    Json formats{Json::Array()};
    for (const tensor::WeightFormat format : part.formats) {
      formats.Append(tensor::WeightFormatName(format));
    }
    Json entry;
    entry.Set("formats", std::move(formats))
        .Set("matrices", part.matrix_count)
        .Set("bytes", part.bytes)
        .Set("relative_rmse",
             part.error.weight_count == 0 ? Json() : Json(part.error.RelativeRmse()));
    parts.Set(checkpoint::TrunkPartName(static_cast<checkpoint::TrunkPart>(i)), std::move(entry));
  }
  Json json;
  json.Set("format", checkpoint::TrunkFormatsText(report.asked))
      .Set("bytes", report.bytes)
      .Set("leaves_embedding", report.leaves_embedding)
      .Set("parts", std::move(parts));
  return json;
}

}  // namespace smoe::cli
