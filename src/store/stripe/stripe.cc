#include "store/stripe/stripe.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/memory.h"
#include "io/file.h"

namespace smoe::store::stripe {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBeginning = "{\n  \"smoe_stripe\": ";

// Where relative paths begin: beside the descriptor itself, not beside a link to it.
std::string FolderOf(const std::string& path) {
  std::error_code ignored;
  fs::path real = path;
  if (fs::is_symlink(real, ignored)) real = fs::canonical(real, ignored);
  return (real.empty() ? fs::path(path) : real).parent_path().string();
}

// Paths are shown, compared and opened, so they must be paths.
Result<std::string> ReadPath(const Json& json, const std::string& folder, const std::string& who) {
  constexpr size_t kPathBytesMax = 4096;
  const Json* value = json.Find("path");
  const std::string* path = value == nullptr ? nullptr : value->AsString();
  if (path == nullptr) return Corrupt("{}: path is missing, expected a file name", who);
  if (path->empty() || path->size() > kPathBytesMax || path->find('\0') != std::string::npos) {
    return Corrupt("{}: path has {} bytes, expected 1 to {} without a NUL", who, path->size(),
                   kPathBytesMax);
  }
  return (fs::path(folder) / *path).string();  // absolute paths stay as they are
}

Result<uint64_t> ReadNumber(const Json& json, const char* key, uint64_t least, uint64_t most,
                            const std::string& who) {
  const Json* value = json.Find(key);
  const auto number = value == nullptr ? std::nullopt : value->AsUint();
  if (!number || *number < least || *number > most) {
    return Corrupt("{}: {} is {}, expected {} to {}", who, key,
                   value == nullptr ? "missing" : value->Dump(), least, most);
  }
  return *number;
}

Result<uint64_t> ReadHex(const Json& json, const char* key, const std::string& who) {
  const Json* value = json.Find(key);
  const std::string* text = value == nullptr ? nullptr : value->AsString();
  uint64_t number = 0;
  if (text != nullptr && text->size() == 16) {
    const char* end = text->data() + text->size();
    const auto [at, error] = std::from_chars(text->data(), end, number, 16);
    if (error == std::errc() && at == end) return number;
  }
  return Corrupt("{}: {} is {}, expected 16 hexadecimal digits", who, key,
                 value == nullptr ? "missing" : value->Dump());
}

Result<Part> ReadPart(const Json& json, const std::string& folder, const std::string& who) {
  Part part;
  SMOE_TRY_ASSIGN(part.path, ReadPath(json, folder, who));
  SMOE_TRY_ASSIGN(const uint64_t weight, ReadNumber(json, "weight", 1, kWeightMax, who));
  part.weight = static_cast<uint32_t>(weight);
  SMOE_TRY_ASSIGN(part.file_bytes,
                  ReadNumber(json, "bytes", kPartHeaderBytes, uint64_t{1} << 60, who));
  SMOE_TRY_ASSIGN(part.body_checksum, ReadHex(json, "checksum", who));
  return part;
}

Status CheckWeights(std::span<const uint32_t> weights) {
  if (weights.size() < 2 || weights.size() - 1 > kPartsMax) {
    return Invalid("stripe: {} folders, expected 1 to {}", weights.empty() ? 0 : weights.size() - 1,
                   kPartsMax);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint32_t least = i == 0 ? 0 : 1;  // the model itself may have no share
    if (weights[i] >= least && weights[i] <= kWeightMax) continue;
    return Invalid("--weights: {} is {}, expected {} to {}",
                   i == 0 ? "the model's own" : fmt::format("that of folder {}", i), weights[i],
                   least, kWeightMax);
  }
  return Ok();
}

}  // namespace

uint64_t Stripe::Id() const {
  std::string text = fmt::format("{} {} {}", model_weight, expert_count, expert_bytes);
  for (const Part& part : parts) {
    text += fmt::format(" {} {} {:016x}", part.weight, part.file_bytes, part.body_checksum);
  }
  return Checksum(AsBytes(text));
}

Result<ExpertExtent> OneExtent(const ExpertStore& store, ExpertId id) {
  const ExpertLocation location = store.Locate(id);
  if (location.extent_count == 1 && location.extents[0].slot_offset == 0) {
    return location.extents[0];
  }
  return Unsupported(
      "{}: an expert is {} reads, expected 1: make a vault or a record store of it first (smoe "
      "shatter, smoe pack)",
      store.path(), location.extent_count);
}

Result<Placement> PlaceExperts(const ExpertStore& store, std::span<const uint32_t> weights) {
  SMOE_TRY(CheckWeights(weights));
  int64_t sum = 0;
  for (const uint32_t weight : weights) sum += weight;
  std::vector<int64_t> turns(weights.size());
  Placement placement;
  placement.part_bytes.assign(weights.size(), kPartHeaderBytes);
  placement.part_bytes[0] = 0;
  for (const ExpertId id : AllExperts(store)) {
    SMOE_TRY_ASSIGN(const ExpertExtent extent, OneExtent(store, id));
    size_t part = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      turns[i] += weights[i];
      if (turns[i] > turns[part]) part = i;
    }
    turns[part] -= sum;
    const uint64_t bytes = RoundUp(extent.size, io::kDirectAlignment);
    placement.places.push_back(
        {static_cast<uint32_t>(part), part == 0 ? 0 : placement.part_bytes[part], bytes});
    if (part != 0) placement.part_bytes[part] += bytes;
  }
  return placement;
}

bool IsStripeFile(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  const auto file = io::File::OpenRead(path);
  char start[kBeginning.size()] = {};
  if (!file || !file->ReadAt(0, std::as_writable_bytes(std::span(start)))) return false;
  return std::string_view(start, sizeof(start)) == kBeginning;
}

Result<Stripe> ReadStripe(const std::string& path) {
  SMOE_TRY_ASSIGN(const std::string text, io::ReadWholeFile(path, kDescriptorBytesMax));
  return ParseStripe(text, path);
}

Result<Stripe> ParseStripe(std::string_view text, const std::string& path) {
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(text, path));
  const std::string folder = FolderOf(path);
  Stripe stripe;
  stripe.path = path;
  SMOE_TRY(ReadNumber(json, "smoe_stripe", kStripeVersion, kStripeVersion, path));
  const Json* model = json.Find("model");
  if (model == nullptr) return Corrupt("{}: model is missing, expected an object", path);
  SMOE_TRY_ASSIGN(stripe.model, ReadPath(*model, folder, path + ": model"));
  SMOE_TRY_ASSIGN(const uint64_t weight,
                  ReadNumber(*model, "weight", 0, kWeightMax, path + ": model"));
  stripe.model_weight = static_cast<uint32_t>(weight);
  SMOE_TRY_ASSIGN(stripe.expert_count, ReadNumber(*model, "experts", 1, UINT32_MAX, path));
  SMOE_TRY_ASSIGN(stripe.expert_bytes, ReadNumber(*model, "bytes", 1, uint64_t{1} << 60, path));
  const Json* parts = json.Find("parts");
  const Json::Array* list = parts == nullptr ? nullptr : parts->AsArray();
  if (list == nullptr || list->empty() || list->size() > kPartsMax) {
    return Corrupt("{}: parts has {} entries, expected 1 to {}", path,
                   list == nullptr ? 0 : list->size(), kPartsMax);
  }
  std::set<std::string> paths;
  for (const Json& item : *list) {
    const std::string who = fmt::format("{}: part {}", path, stripe.parts.size() + 1);
    SMOE_TRY_ASSIGN(Part part, ReadPart(item, folder, who));
    if (!paths.insert(part.path).second) return Corrupt("{}: {} is named twice", who, part.path);
    stripe.parts.push_back(std::move(part));
  }
  SMOE_TRY_ASSIGN(const uint64_t id, ReadHex(json, "id", path));
  if (id != stripe.Id()) {
    return Corrupt("{}: id is {:016x}, its weights, sizes and checksums give {:016x}", path, id,
                   stripe.Id());
  }
  return stripe;
}

Json Describe(const Stripe& stripe) {
  Json model;
  model.Set("path", stripe.model)
      .Set("weight", stripe.model_weight)
      .Set("experts", stripe.expert_count)
      .Set("bytes", stripe.expert_bytes);
  Json parts{Json::Array()};
  for (const Part& part : stripe.parts) {
    Json item;
    item.Set("path", part.path)
        .Set("weight", part.weight)
        .Set("bytes", part.file_bytes)
        .Set("checksum", fmt::format("{:016x}", part.body_checksum));
    parts.Append(std::move(item));
  }
  Json json;
  json.Set("smoe_stripe", kStripeVersion)
      .Set("id", fmt::format("{:016x}", stripe.Id()))
      .Set("model", std::move(model))
      .Set("parts", std::move(parts));
  return json;
}

std::string StripeText(const Stripe& stripe) { return Describe(stripe).Dump(2) + "\n"; }

PartHeader MakePartHeader(const Stripe& stripe, uint32_t part_index) {
  const Part& part = stripe.parts[part_index - 1];
  PartHeader header = {};
  std::memcpy(header.magic, kPartMagic, sizeof(kPartMagic));
  header.version = kStripeVersion;
  header.part_index = part_index;
  header.stripe_id = stripe.Id();
  header.file_bytes = part.file_bytes;
  header.body_checksum = part.body_checksum;
  header.header_checksum =
      Checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(PartHeader, header_checksum)));
  return header;
}

}  // namespace smoe::store::stripe
