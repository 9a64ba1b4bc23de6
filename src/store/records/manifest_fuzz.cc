// Fuzz target of manifest.json. Asserts what readers rely on, and that a manifest that was read is
// written again as one that reads the same.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "store/records/manifest.h"

// Named by libFuzzer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace records = smoe::store::records;
  std::string text(size, '\0');
  if (size != 0) std::memcpy(text.data(), data, size);
  const auto index = records::ParseManifest(text, "input");
  if (!index) return 0;
  SMOE_CHECK(index->num_moe_layers >= 1 && index->num_experts >= 1);
  SMOE_CHECK(uint64_t{index->num_moe_layers} * index->num_experts <= records::kRecordsMax);
  SMOE_CHECK(index->moe_layer_to_model_layer.size() == index->num_moe_layers);
  for (const uint32_t layer : index->moe_layer_to_model_layer) {
    SMOE_CHECK(layer <= records::kModelLayerMax);
  }
  SMOE_CHECK(index->record_checksums.empty() ||
             index->record_checksums.size() ==
                 uint64_t{index->num_moe_layers} * index->num_experts);
  const auto spec = records::ExpertRecordSpec::Create(index->inter, index->hidden,
                                                      index->group_size, index->sub_align);
  SMOE_CHECK(spec.has_value() && spec->raw_bytes == index->record_raw_bytes);
  SMOE_CHECK(index->record_stride >= spec->raw_bytes);
  for (const records::ProjPlace& place : spec->projs) {
    SMOE_CHECK(smoe::RangeFits(place.packed_offset, place.bytes.packed, spec->raw_bytes));
    SMOE_CHECK(smoe::RangeFits(place.scale_offset, place.bytes.scale, spec->raw_bytes));
  }
  for (const records::StoreFile& file : index->files) {
    SMOE_CHECK(file.name.find('/') == std::string::npos && file.name != "..");
  }
  const std::string written = records::ManifestText(*index);
  const auto again = records::ParseManifest(written, "written");
  SMOE_CHECK(again.has_value() && records::ManifestText(*again) == written);
  return 0;
}
