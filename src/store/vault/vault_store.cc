#include "store/vault/vault_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "store/checked_experts.h"
#include "store/vault/blob_check.h"

namespace smoe::store::vault {

namespace {

tensor::WeightView MatrixView(const TensorPlace& place, const Vault& vault, Bytes slot) {
  tensor::WeightView view;
  view.format = vault.bits == tensor::SmoeBits::kQ4 ? tensor::WeightFormat::kSmoeQ4
                                                    : tensor::WeightFormat::kSmoeQ2;
  view.rows = place.rows;
  view.cols = place.cols;
  view.data = slot.subspan(place.packed_offset, place.packed_size);
  view.scales = slot.subspan(place.scales_offset, place.scales_size);
  view.group_size = vault.group_size;
  return view;
}

class VaultStore final : public ExpertStore {
 public:
  VaultStore(Vault vault, std::vector<StoreLayer> layers)
      : vault_(std::move(vault)),
        layers_(std::move(layers)),
        format_name_(
            fmt::format("smoe-q{} group {}", static_cast<int>(vault_.bits), vault_.group_size)),
        checked_(vault_.records.size()) {
    for (const ExpertRecord& record : vault_.records) {
      slot_bytes_ = std::max(slot_bytes_, record.padded_size);
    }
    expert_count_ = layers_.back().first_ordinal + layers_.back().expert_count;
  }

  void TryDirect() {
    Result<io::File> direct = io::File::OpenDirect(vault_.path);
    if (!direct) {
      LogInfo("experts: direct I/O not available here, using buffered: {}",
              direct.error().message());
      return;
    }
    direct_file_ = std::move(*direct);
    direct_io_ = true;
  }

  const std::string& path() const override { return vault_.path; }
  const char* format_name() const override { return format_name_.c_str(); }
  std::span<const StoreLayer> layers() const override { return layers_; }
  uint32_t expert_count() const override { return expert_count_; }
  uint32_t hidden_size() const override { return vault_.hidden_size; }
  uint32_t intermediate_size() const override { return vault_.intermediate_size; }
  uint64_t slot_bytes() const override { return slot_bytes_; }
  bool direct_io() const override { return direct_io_; }

  bool FallBackToBuffered() override {
    if (!direct_io_.exchange(false)) return false;
    LogInfo("experts: {}: direct I/O not available or not better here, using buffered",
            vault_.path);
    return true;
  }

  ExpertLocation Locate(ExpertId id) const override {
    const ExpertRecord& record = Record(id);
    ExpertLocation location;
    location.extent_count = 1;
    location.extents[0] = {direct_io_ ? direct_file_.fd() : vault_.file.fd(), record.byte_offset,
                           record.padded_size, 0};
    return location;
  }

  Status Admit(ExpertId id, MutableBytes slot) const override {
    const ExpertRecord& record = Record(id);
    const size_t index = static_cast<size_t>(&record - vault_.records.data());
    if (checked_.Contains(index)) return Ok();  // a blob does not say whose it is
    SMOE_TRY(CheckBlob(vault_, record, slot));
    checked_.Add(index);
    return Ok();
  }

  tensor::ExpertWeights View(ExpertId id, Bytes slot) const override {
    const ExpertRecord& record = Record(id);
    return {MatrixView(record.tensors[0], vault_, slot),
            MatrixView(record.tensors[1], vault_, slot),
            MatrixView(record.tensors[2], vault_, slot)};
  }

 private:
  const ExpertRecord& Record(ExpertId id) const {
    const ExpertRecord* record = vault_.Find(id);
    SMOE_CHECK(record != nullptr);
    return *record;
  }

  const Vault vault_;
  const std::vector<StoreLayer> layers_;
  const std::string format_name_;
  io::File direct_file_;  // stays open after a fallback: reads on it may be in flight
  std::atomic<bool> direct_io_ = false;
  uint64_t slot_bytes_ = 0;
  uint32_t expert_count_ = 0;
  mutable CheckedExperts checked_;  // by record
};

}  // namespace

Result<std::unique_ptr<ExpertStore>> OpenVaultStore(Vault vault, const VaultStoreOptions& options) {
  if (vault.is_partial()) {
    return Invalid("{}: a partial vault cannot run: {}; convert the checkpoint whole", vault.path,
                   vault.missing);
  }
  std::vector<StoreLayer> layers;
  uint32_t ordinal = 0;
  for (const VaultLayer& layer : vault.layers) {
    if (layer.layer_index >= options.num_hidden_layers) continue;
    layers.push_back({layer.layer_index, layer.expert_count, ordinal});
    ordinal += layer.expert_count;
  }
  if (layers.empty()) {
    return Invalid("{}: no layer with experts below num_hidden_layers {}", vault.path,
                   options.num_hidden_layers);
  }
  auto store = std::make_unique<VaultStore>(std::move(vault), std::move(layers));
  if (options.direct_io) store->TryDirect();
  return store;
}

}  // namespace smoe::store::vault
