#include "experts/trace.h"

#include <fmt/core.h>

#include <charconv>
#include <optional>

#include "base/bytes.h"

namespace smoe::experts {

namespace {

constexpr std::string_view kFirstLine = "# smoe trace 1";

// What of a hostile file goes into a message.
constexpr size_t kQuotedMax = 40;
std::string_view Quoted(std::string_view text) { return text.substr(0, kQuotedMax); }

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Result<Trace> Parse() {
    SMOE_TRY(ParseHeader());
    while (!rest_.empty()) {
      // "1 12" may be what is left of "1 123".
      const bool is_whole = rest_.find('\n') != std::string_view::npos;
      SMOE_TRY(ParseLine(TakeLine()));
      if (!is_whole) {
        return Corrupt("line {}: a line's end expected, the file ends first; it was cut",
                       line_number_);
      }
    }
    if (next_layer_ != 0 && is_first_token_ == false) {
      return Corrupt("line {}: layer {} expected next, the file ends inside a token", line_number_,
                     trace_.layers[next_layer_]);
    }
    return std::move(trace_);
  }

 private:
  std::string_view TakeLine() {
    const size_t end = rest_.find('\n');
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    ++line_number_;
    return line;
  }

  // A number and the space before the next.
  template <class T>
  static std::optional<T> TakeNumber(std::string_view* line) {
    T value = 0;
    const auto [end, error] = std::from_chars(line->data(), line->data() + line->size(), value);
    if (error != std::errc()) return std::nullopt;
    line->remove_prefix(static_cast<size_t>(end - line->data()));
    if (!line->empty() && line->front() != ' ') return std::nullopt;
    if (!line->empty()) line->remove_prefix(1);
    return value;
  }

  template <class T>
  static bool TakeField(std::string_view name, std::string_view* line, T* value) {
    if (!line->starts_with(name)) return false;
    line->remove_prefix(name.size());
    const std::optional<T> number = TakeNumber<T>(line);
    if (number) *value = *number;
    return number.has_value();
  }

  Status ParseHeader() {
    const std::string_view first = TakeLine();
    if (first != kFirstLine) {
      return Corrupt("line 1: \"{}\" expected, \"{}\" found; not a trace of smoe", kFirstLine,
                     Quoted(first));
    }
    std::string_view line = TakeLine();
    const std::string_view whole = line;
    if (!TakeField("# experts ", &line, &trace_.expert_count) ||
        !TakeField("top_k ", &line, &trace_.top_k) ||
        !TakeField("expert_bytes ", &line, &trace_.expert_bytes) || !line.starts_with("model ")) {
      return Corrupt(
          "line 2: \"# experts N top_k N expert_bytes N model NAME\" expected, \"{}\" found",
          Quoted(whole));
    }
    trace_.model = line.substr(std::string_view("model ").size());
    if (trace_.top_k == 0 || trace_.top_k > trace_.expert_count) {
      return Corrupt("line 2: top_k {}, expected 1 to the {} experts of a layer", trace_.top_k,
                     trace_.expert_count);
    }
    if (trace_.expert_bytes == 0 || trace_.expert_bytes > kTraceExpertBytesMax) {
      return Corrupt("line 2: expert_bytes {}, expected 1 to {}", trace_.expert_bytes,
                     kTraceExpertBytesMax);
    }
    if (trace_.expert_count > kTraceExpertsMax) {
      return Corrupt("line 2: {} experts, expected at most {}", trace_.expert_count,
                     kTraceExpertsMax);
    }
    return Ok();
  }

  Status ParseLine(std::string_view line) {
    const std::optional<uint32_t> layer = TakeNumber<uint32_t>(&line);
    if (!layer)
      return Corrupt("line {}: a layer expected, \"{}\" found", line_number_, Quoted(line));
    SMOE_TRY(PlaceLayer(*layer));
    std::optional<uint32_t> previous;
    for (uint32_t i = 0; i < trace_.top_k; ++i) {
      const std::string_view at = line;
      const std::optional<uint32_t> id = TakeNumber<uint32_t>(&line);
      if (!id || *id >= trace_.expert_count || (previous && *id <= *previous)) {
        return Corrupt("line {}: {} ascending experts below {} expected, \"{}\" found",
                       line_number_, trace_.top_k, trace_.expert_count, Quoted(at));
      }
      trace_.expert_ids.push_back(*id);
      previous = id;
    }
    if (!line.empty()) {
      return Corrupt("line {}: {} experts expected, then \"{}\" found", line_number_, trace_.top_k,
                     Quoted(line));
    }
    return Ok();
  }

  // The first token says which layers there are; every other has the same.
  Status PlaceLayer(uint32_t layer) {
    if (is_first_token_ && (trace_.layers.empty() || layer > trace_.layers.back())) {
      if (trace_.layers.size() >= kTraceExpertsMax / trace_.expert_count) {
        return Corrupt("line {}: {} layers of {} experts, expected at most {} experts in all",
                       line_number_, trace_.layers.size() + 1, trace_.expert_count,
                       kTraceExpertsMax);
      }
      trace_.layers.push_back(layer);
      return Ok();
    }
    is_first_token_ = false;
    if (layer != trace_.layers[next_layer_]) {
      return Corrupt("line {}: layer {} expected, {} found", line_number_,
                     trace_.layers[next_layer_], layer);
    }
    next_layer_ = (next_layer_ + 1) % trace_.layers.size();
    return Ok();
  }

  std::string_view rest_;
  size_t line_number_ = 0;
  Trace trace_;
  bool is_first_token_ = true;
  size_t next_layer_ = 0;  // index into trace_.layers, after the first token
};

}  // namespace

std::string TraceHeader(const Trace& trace) {
  return fmt::format("{}\n# experts {} top_k {} expert_bytes {} model {}\n", kFirstLine,
                     trace.expert_count, trace.top_k, trace.expert_bytes, trace.model);
}

void AppendTraceLine(uint32_t layer, std::span<const uint32_t> ids, std::string* out) {
  *out += std::to_string(layer);
  for (const uint32_t id : ids) {
    *out += ' ';
    *out += std::to_string(id);
  }
  *out += '\n';
}

Result<Trace> ParseTrace(std::string_view text) { return Parser(text).Parse(); }

}  // namespace smoe::experts
