#include "convert/journal.h"

#include <sys/stat.h>

#include <bit>
#include <charconv>
#include <map>
#include <optional>

namespace smoe::convert {
namespace {

// 25,000 experts have lines of at most 300 bytes: 7.5 MB.
constexpr uint64_t kJournalBytesMax = uint64_t{256} << 20;

// Hexadecimal words, so that floats keep their bits; the last word is a checksum of the others.
std::string LineOf(const ExpertDone& expert) {
  std::string line =
      fmt::format("{:x} {:x} {:x}", expert.index, expert.checksum, expert.non_finite_count);
  for (const tensor::QuantisationError& error : expert.errors) {
    line += fmt::format(
        " {:x} {:x} {:x} {:x}", error.weight_count, std::bit_cast<uint64_t>(error.squared_error),
        std::bit_cast<uint64_t>(error.squared_value), std::bit_cast<uint64_t>(error.error_max));
  }
  return line + fmt::format(" {:x}\n", Checksum(AsBytes(std::string_view(line))));
}

std::optional<std::vector<uint64_t>> ParseWords(std::string_view line) {
  std::vector<uint64_t> words;
  while (!line.empty()) {
    uint64_t word = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), word, 16);
    if (error != std::errc()) return std::nullopt;
    line.remove_prefix(static_cast<size_t>(end - line.data()));
    if (!line.empty() && line.front() != ' ') return std::nullopt;
    if (!line.empty()) line.remove_prefix(1);
    words.push_back(word);
  }
  return words;
}

std::optional<ExpertDone> ParseLine(std::string_view line) {
  const size_t last_space = line.rfind(' ');
  const auto words = ParseWords(line);
  constexpr size_t kWordCount = 3 + 4 * checkpoint::kProjCount + 1;
  if (!words || words->size() != kWordCount || last_space == std::string_view::npos ||
      words->back() != Checksum(AsBytes(line.substr(0, last_space)))) {
    return std::nullopt;
  }
  ExpertDone expert;
  const std::vector<uint64_t>& w = *words;
  expert.index = w[0];
  expert.checksum = w[1];
  expert.non_finite_count = w[2];
  for (size_t i = 0; i < expert.errors.size(); ++i) {
    const size_t at = 3 + 4 * i;
    expert.errors[i] = {w[at], std::bit_cast<double>(w[at + 1]), std::bit_cast<double>(w[at + 2]),
                        std::bit_cast<double>(w[at + 3])};
  }
  return expert;
}

// Adds "what: then, now" for every member that differs, down to single values.
void CollectDifferences(const std::string& what, const Json* then, const Json* now,
                        std::vector<std::string>* differences) {
  const std::string then_text = then == nullptr ? "absent" : then->Dump();
  const std::string now_text = now == nullptr ? "absent" : now->Dump();
  if (then_text == now_text) return;
  if (then == nullptr || now == nullptr || !then->is_object() || !now->is_object()) {
    differences->push_back(fmt::format("{}: then {}, now {}", what, then_text, now_text));
    return;
  }
  const auto path = [&](const std::string& key) { return what.empty() ? key : what + "." + key; };
  for (const auto& [key, value] : *then->AsObject()) {
    CollectDifferences(path(key), &value, now->Find(key), differences);
  }
  for (const auto& [key, value] : *now->AsObject()) {
    if (then->Find(key) == nullptr) CollectDifferences(path(key), nullptr, &value, differences);
  }
}

Status CompareIdentity(const std::string& path, const Json& then, const Json& identity) {
  std::vector<std::string> differences;
  CollectDifferences("", &then, &identity, &differences);
  if (differences.empty()) return Ok();
  std::string text;
  for (size_t i = 0; i < differences.size() && i < 4; ++i) {
    text += (i == 0 ? "" : "; ") + differences[i];
  }
  return Invalid(
      "{}: the unfinished conversion was begun from another source or with other options ({}); "
      "give the same ones, or start again by --force instead of --resume",
      path, text);
}

}  // namespace

Unexpected NoJournal(const std::string& journal_path, const std::string& out_path) {
  return Invalid("{}: missing, so what lies in {} cannot be gone on with; --force starts again",
                 journal_path, out_path);
}

Result<std::unique_ptr<Journal>> Journal::Create(const std::string& path, const Json& identity) {
  std::unique_ptr<Journal> journal(new Journal);
  SMOE_TRY_ASSIGN(journal->file_, io::File::Create(path));
  const std::string line = identity.Dump() + "\n";
  SMOE_TRY(journal->file_.WriteAt(0, AsBytes(std::string_view(line))));
  journal->end_ = line.size();
  return journal;
}

Result<std::unique_ptr<Journal>> Journal::Resume(const std::string& path, const Json& identity,
                                                 std::vector<ExpertDone>* done) {
  done->clear();
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return Create(path, identity);
  SMOE_TRY_ASSIGN(const std::string text, io::ReadWholeFile(path, kJournalBytesMax));
  const size_t first_end = text.find('\n');
  const auto then = first_end == std::string::npos
                        ? Result<Json>(Corrupt("no line"))
                        : Json::Parse(std::string_view(text).substr(0, first_end), path);
  if (!then) return Create(path, identity);  // torn in its first line: nothing was done yet
  SMOE_TRY(CompareIdentity(path, *then, identity));
  std::map<uint64_t, ExpertDone> experts;
  for (size_t at = first_end + 1; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const auto expert = ParseLine(std::string_view(text).substr(at, end - at));
    if (expert) experts[expert->index] = *expert;
    at = end + 1;
  }
  // Written anew, so that a torn tail cannot run into the next line.
  SMOE_TRY_ASSIGN(auto journal, Create(path, identity));
  for (const auto& [index, expert] : experts) {
    SMOE_TRY(journal->Append(expert));
    done->push_back(expert);
  }
  return journal;
}

Status Journal::Append(const ExpertDone& expert) {
  const std::string line = LineOf(expert);
  const std::lock_guard lock(mutex_);
  SMOE_TRY(file_.WriteAt(end_, AsBytes(std::string_view(line))));
  end_ += line.size();
  return Ok();
}

}  // namespace smoe::convert
