#include "store/stripe/striped_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/file_checksum.h"
#include "store/read_expert.h"

namespace smoe::store::stripe {

namespace {

std::string PartName(const Stripe& stripe, size_t index) {
  return fmt::format("{}: part {} of {}, {}", stripe.path, index + 1, stripe.parts.size(),
                     stripe.parts[index].path);
}

Result<io::File> OpenPart(const Stripe& stripe, size_t index) {
  const Part& part = stripe.parts[index];
  const std::string name = PartName(stripe, index);
  std::error_code error;
  if (!std::filesystem::exists(part.path, error)) {
    return Invalid(
        "{}: not there{}; mount its drive, write its new place into {}, or use {} itself", name,
        error ? " (" + error.message() + ")" : "", stripe.path, stripe.model);
  }
  SMOE_TRY_ASSIGN(io::File file, io::File::OpenRead(part.path));
  SMOE_TRY_ASSIGN(const uint64_t found, file.Size());
  if (found != part.file_bytes) {
    return Corrupt("{}: has {} bytes, expected {}{}; stripe the model again", name, found,
                   part.file_bytes, found < part.file_bytes ? ": truncated?" : "");
  }
  PartHeader header = {};
  SMOE_TRY(file.ReadAt(0, std::as_writable_bytes(std::span(&header, 1))));
  const PartHeader expected = MakePartHeader(stripe, static_cast<uint32_t>(index + 1));
  if (std::memcmp(&header, &expected, sizeof(header)) == 0) return file;
  if (std::memcmp(header.magic, kPartMagic, sizeof(kPartMagic)) != 0) {
    return Corrupt("{}: does not begin with SMOEPART: not a part of a striped model", name);
  }
  return Corrupt(
      "{}: header has stripe id {:016x} and part {}, expected {:016x} and {}: a part of another "
      "model or another striping; stripe the model again",
      name, uint64_t{header.stripe_id}, uint32_t{header.part_index}, uint64_t{expected.stripe_id},
      index + 1);
}

class StripedStore final : public ExpertStore {
 public:
  StripedStore(Stripe stripe, std::unique_ptr<ExpertStore> model, Placement placement,
               std::vector<io::File> files)
      : stripe_(std::move(stripe)),
        model_(std::move(model)),
        placement_(std::move(placement)),
        files_(std::move(files)) {}

  void TryDirect() {
    if (!model_->direct_io()) return;
    for (const Part& part : stripe_.parts) {
      Result<io::File> direct = io::File::OpenDirect(part.path);
      if (!direct) {
        LogInfo("experts: direct I/O not available on one drive, using buffered on all: {}",
                direct.error().message());
        direct_files_.clear();
        model_->FallBackToBuffered();
        return;
      }
      direct_files_.push_back(std::move(*direct));
    }
    direct_io_ = true;
  }

  // The first expert of each part is the model's own: the model is there, so it can be asked.
  Status CompareWithModel() {
    std::vector<bool> seen(stripe_.parts.size() + 1);
    SMOE_TRY_ASSIGN(AlignedBuffer own, AlignedBuffer::Create(slot_bytes(), "opening a stripe"));
    SMOE_TRY_ASSIGN(AlignedBuffer copy, AlignedBuffer::Create(slot_bytes(), "opening a stripe"));
    const std::vector<ExpertId> ids = AllExperts(*this);
    for (size_t ordinal = 0; ordinal < ids.size(); ++ordinal) {
      const Place& place = placement_.places[ordinal];
      if (place.part == 0 || seen[place.part]) continue;
      seen[place.part] = true;
      const ExpertExtent extent = model_->Locate(ids[ordinal]).extents[0];
      const MutableBytes expected = own.bytes().first(extent.size);
      const MutableBytes found = copy.bytes().first(place.bytes);
      SMOE_TRY(io::ReadFd(extent.fd, model_->path(), extent.offset, expected));
      SMOE_TRY(files_[place.part - 1].ReadAt(place.offset, found));
      if (std::equal(expected.begin(), expected.end(), found.begin())) continue;
      return Corrupt(
          "{}: layer {}, expert {} at byte {} differs from that of {}: a part of another model, "
          "or one of the two was changed; stripe the model again",
          PartName(stripe_, place.part - 1), ids[ordinal].layer_index, ids[ordinal].expert_index,
          place.offset, stripe_.model);
    }
    return Ok();
  }

  const std::string& path() const override { return stripe_.path; }
  const char* format_name() const override { return model_->format_name(); }
  std::span<const StoreLayer> layers() const override { return model_->layers(); }
  uint32_t expert_count() const override { return model_->expert_count(); }
  uint32_t hidden_size() const override { return model_->hidden_size(); }
  uint32_t intermediate_size() const override { return model_->intermediate_size(); }
  uint64_t slot_bytes() const override { return model_->slot_bytes(); }
  bool direct_io() const override { return direct_io_; }

  bool FallBackToBuffered() override {
    const bool was_direct = direct_io_.exchange(false);
    return model_->FallBackToBuffered() || was_direct;
  }

  ExpertLocation Locate(ExpertId id) const override {
    const Place& place = PlaceOf(id);
    if (place.part == 0) return model_->Locate(id);
    const size_t index = place.part - 1;
    ExpertLocation location;
    location.extent_count = 1;
    location.extents[0] = {direct_io_ ? direct_files_[index].fd() : files_[index].fd(),
                           place.offset, place.bytes, 0};
    return location;
  }

  Status Admit(ExpertId id, MutableBytes slot) const override {
    Status status = model_->Admit(id, slot);
    const Place& place = PlaceOf(id);
    if (status || place.part == 0) return status;
    return While(
        fmt::format("{}: copy at byte {}", PartName(stripe_, place.part - 1), place.offset),
        std::move(status));
  }

  tensor::ExpertWeights View(ExpertId id, Bytes slot) const override {
    return model_->View(id, slot);
  }

 private:
  const Place& PlaceOf(ExpertId id) const {
    const auto ordinal = FindOrdinal(*model_, id);
    SMOE_CHECK(ordinal.has_value());
    return placement_.places[*ordinal];
  }

  const Stripe stripe_;
  const std::unique_ptr<ExpertStore> model_;
  const Placement placement_;
  const std::vector<io::File> files_;
  std::vector<io::File> direct_files_;  // stay open after a fallback: reads may be in flight
  std::atomic<bool> direct_io_ = false;
};

// The descriptor is of a model with these experts.
Status CheckModel(const Stripe& stripe, const ExpertStore& model, const Placement& placement) {
  uint64_t bytes = 0;
  for (const Place& place : placement.places) bytes += place.bytes;
  if (model.expert_count() != stripe.expert_count || bytes != stripe.expert_bytes) {
    return Corrupt("{}: {} experts in {} bytes, expected {} in {}, those of {}: another model?",
                   stripe.path, stripe.expert_count, stripe.expert_bytes, model.expert_count(),
                   bytes, stripe.model);
  }
  for (size_t i = 0; i < stripe.parts.size(); ++i) {
    if (stripe.parts[i].file_bytes == placement.part_bytes[i + 1]) continue;
    return Corrupt("{}: part {}: bytes is {}, the weights give {}", stripe.path, i + 1,
                   stripe.parts[i].file_bytes, placement.part_bytes[i + 1]);
  }
  return Ok();
}

Status VerifyPart(const Stripe& stripe, size_t index) {
  constexpr uint64_t kChunkBytes = uint64_t{8} << 20;
  SMOE_TRY_ASSIGN(const io::File file, OpenPart(stripe, index));
  SMOE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Create(kChunkBytes, "verifying"));
  const Part& part = stripe.parts[index];
  const uint64_t body_bytes = part.file_bytes - std::min(part.file_bytes, kPartHeaderBytes);
  SMOE_TRY_ASSIGN(const uint64_t checksum,
                  io::ChecksumOfStretch(file, kPartHeaderBytes, body_bytes, buffer.bytes(),
                                        [&](uint64_t at, Bytes piece) -> Status {
                                          file.DropFromPageCache(kPartHeaderBytes + at,
                                                                 piece.size());
                                          return Ok();
                                        }));
  if (checksum == part.body_checksum) return Ok();
  return Corrupt("{}: checksum is {:016x}, expected {:016x}; stripe the model again",
                 PartName(stripe, index), checksum, part.body_checksum);
}

}  // namespace

Result<std::unique_ptr<ExpertStore>> OpenStripedStore(Stripe stripe,
                                                      std::unique_ptr<ExpertStore> model) {
  std::vector<uint32_t> weights{stripe.model_weight};
  for (const Part& part : stripe.parts) weights.push_back(part.weight);
  SMOE_TRY_ASSIGN(Placement placement, PlaceExperts(*model, weights));
  SMOE_TRY(CheckModel(stripe, *model, placement));
  std::vector<io::File> files;
  for (size_t i = 0; i < stripe.parts.size(); ++i) {
    SMOE_TRY_ASSIGN(io::File file, OpenPart(stripe, i));
    files.push_back(std::move(file));
  }
  auto store = std::make_unique<StripedStore>(std::move(stripe), std::move(model),
                                              std::move(placement), std::move(files));
  SMOE_TRY(store->CompareWithModel());
  store->TryDirect();
  return store;
}

void VerifyParts(const Stripe& stripe, const std::function<void(std::string)>& on_problem) {
  for (size_t i = 0; i < stripe.parts.size(); ++i) {
    if (Status status = VerifyPart(stripe, i); !status) on_problem(status.error().message());
  }
}

}  // namespace smoe::store::stripe
