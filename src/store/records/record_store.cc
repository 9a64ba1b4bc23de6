#include "store/records/record_store.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "base/memory.h"
#include "store/checked_experts.h"
#include "store/records/record.h"

namespace smoe::store::records {

namespace {

class RecordStore final : public ExpertStore {
 public:
  RecordStore(RecordFolder folder, std::vector<StoreLayer> layers)
      : folder_(std::move(folder)), layers_(std::move(layers)), checked_(folder_.record_count()) {
    dense_layers_.assign(kModelLayerMax + 1, 0);
    const std::vector<uint32_t>& map = folder_.index.moe_layer_to_model_layer;
    for (uint32_t dense = 0; dense < map.size(); ++dense) dense_layers_[map[dense]] = dense;
  }

  void TryDirect() {
    if (folder_.layout.record_stride % io::kDirectAlignment != 0) {
      LogInfo("experts: {}: record_stride {} is no multiple of {}, reads are buffered",
              folder_.path, folder_.layout.record_stride, io::kDirectAlignment);
      return;
    }
    std::vector<io::File> files;
    for (const io::File& file : folder_.files) {
      Result<io::File> direct = io::File::OpenDirect(file.path());
      if (!direct) {
        LogInfo("experts: direct I/O not available here, using buffered: {}",
                direct.error().message());
        return;
      }
      files.push_back(std::move(*direct));
    }
    direct_files_ = std::move(files);
    direct_io_ = true;
  }

  const std::string& path() const override { return folder_.path; }
  const char* format_name() const override { return "nvfp4 group 16"; }
  std::span<const StoreLayer> layers() const override { return layers_; }
  uint32_t expert_count() const override {
    return layers_.back().first_ordinal + layers_.back().expert_count;
  }
  uint32_t hidden_size() const override { return folder_.spec.hidden; }
  uint32_t intermediate_size() const override { return folder_.spec.inter; }
  uint64_t slot_bytes() const override { return RoundUp(folder_.spec.raw_bytes, kPageBytes); }
  bool direct_io() const override { return direct_io_; }

  bool FallBackToBuffered() override {
    if (!direct_io_.exchange(false)) return false;
    LogInfo("experts: {}: direct I/O not available or not better here, using buffered",
            folder_.path);
    return true;
  }

  ExpertLocation Locate(ExpertId id) const override {
    const ExpertKey key = Key(id);
    const bool is_direct = direct_io_;
    const io::File& file = is_direct ? direct_files_[key.layer] : folder_.files[key.layer];
    // A stride of whole pages: the padding of the last record is in the file too.
    const uint64_t size = is_direct ? slot_bytes() : folder_.spec.raw_bytes;
    ExpertLocation location;
    location.extent_count = 1;
    location.extents[0] = {file.fd(), folder_.layout.RecordOffset(key.expert), size, 0};
    return location;
  }

  Status Admit(ExpertId id, MutableBytes slot) const override {
    const ExpertKey key = Key(id);
    const size_t index = ExpertRecordId::Of(key, folder_.layout.num_experts).value;
    if (checked_.Contains(index)) {
      Status same = CheckIdentity(folder_.spec, key, slot);
      return same ? Ok() : While(folder_.RecordName(key), std::move(same));
    }
    SMOE_TRY(CheckRecord(folder_, key, slot));
    checked_.Add(index);
    return Ok();
  }

  tensor::ExpertWeights View(ExpertId id, Bytes slot) const override {
    static_cast<void>(id);  // the slot says it all
    return ViewRecord(folder_.spec, slot);
  }

 private:
  ExpertKey Key(ExpertId id) const {
    SMOE_CHECK(id.layer_index < dense_layers_.size());
    const ExpertKey key{dense_layers_[id.layer_index], id.expert_index};
    SMOE_CHECK(folder_.index.moe_layer_to_model_layer[key.layer] == id.layer_index);
    SMOE_CHECK(key.expert < folder_.layout.num_experts);
    return key;
  }

  const RecordFolder folder_;
  const std::vector<StoreLayer> layers_;
  std::vector<uint32_t> dense_layers_;  // by model layer
  std::vector<io::File> direct_files_;  // stay open after a fallback: reads may be in flight
  std::atomic<bool> direct_io_ = false;
  mutable CheckedExperts checked_;  // by ExpertRecordId
};

}  // namespace

Result<std::unique_ptr<ExpertStore>> OpenRecordStore(RecordFolder folder,
                                                     const RecordStoreOptions& options) {
  std::vector<uint32_t> model_layers = folder.index.moe_layer_to_model_layer;
  std::sort(model_layers.begin(), model_layers.end());
  std::vector<StoreLayer> layers;
  uint32_t ordinal = 0;
  for (const uint32_t layer : model_layers) {
    if (layer >= options.num_hidden_layers) continue;
    layers.push_back({layer, folder.layout.num_experts, ordinal});
    ordinal += folder.layout.num_experts;
  }
  if (layers.empty()) {
    return Invalid("{}: no layer with experts below num_hidden_layers {}", folder.path,
                   options.num_hidden_layers);
  }
  auto store = std::make_unique<RecordStore>(std::move(folder), std::move(layers));
  if (options.direct_io) store->TryDirect();
  return store;
}

}  // namespace smoe::store::records
