#include <fmt/format.h>

#include "store/records/record_folder.h"

namespace smoe::store::records {

namespace {

Json DescribeManifest(const ExpertIndex& index) {
  Json json = FormatKeys(index);
  json.Set("orientation", index.says_orientation ? "transposed" : "transposed (not said)")
      .Set("record_checksums", !index.record_checksums.empty());
  if (!index.source.is_null()) json.Set("source", index.source);
  return json;
}

Json DescribeExperts(const RecordFolder& folder) {
  Json json;
  json.Set("count", folder.record_count())
      .Set("format", fmt::format("nvfp4 group {}", folder.spec.group_size))
      .Set("hidden_size", folder.spec.hidden)
      .Set("intermediate_size", folder.spec.inter)
      .Set("bytes_each", folder.spec.payload_bytes());
  for (const Proj proj : kProjs) {
    const ProjPlace& place = folder.spec.Place(proj);
    Json entry;
    entry.Set("rows", place.n)
        .Set("cols", place.k)
        .Set("packed_offset", place.packed_offset)
        .Set("packed_size", place.bytes.packed)
        .Set("scale_offset", place.scale_offset)
        .Set("scale_size", place.bytes.scale);
    json.Set(ProjName(proj), std::move(entry));
  }
  return json;
}

Json DescribeFiles(const RecordFolder& folder) {
  Json files{Json::Array()};
  for (const StoreFile& file : folder.index.files) {
    Json entry;
    entry.Set("part", file.part)
        .Set("name", file.name)
        .Set("bytes", file.bytes)
        .Set("checksum", fmt::format("{:016x}", file.checksum));
    files.Append(std::move(entry));
  }
  return files;
}

// A record as its own header has it, unchecked: what is wrong can be seen here.
Json DescribeRecord(const RecordFolder& folder, ExpertKey key) {
  const uint64_t offset = folder.layout.RecordOffset(key.expert);
  Json json;
  json.Set("layer", folder.index.moe_layer_to_model_layer[key.layer])
      .Set("expert", key.expert)
      .Set("file", ExpertIndex::FileName(key.layer))
      .Set("byte_offset", offset);
  ExpertRecordHeader header = {};
  const MutableBytes bytes = std::as_writable_bytes(std::span(&header, 1));
  if (const Status status = folder.files[key.layer].ReadAt(offset, bytes); !status) {
    return json.Set("unreadable", status.error().message());
  }
  for (const Proj proj : kProjs) {
    const size_t i = ProjIndex(proj);
    Json scalars;
    scalars.Set("scale2", double{header.scale2[i]});
    if ((header.input_scale_flags >> i & 1) != 0) {
      scalars.Set("input_scale", double{header.input_scale[i]});
    }
    json.Set(ProjName(proj), std::move(scalars));
  }
  return json;
}

}  // namespace

Json Describe(const RecordFolder& folder, bool list_experts) {
  Json json;
  json.Set("folder", folder.path)
      .Set("bytes", folder.layer_bytes())
      .Set("manifest", DescribeManifest(folder.index))
      .Set("experts", DescribeExperts(folder))
      .Set("files", DescribeFiles(folder))
      .Set("decisions", Json::ListOf(folder.decisions))
      .Set("warnings", Json::ListOf(folder.warnings));
  if (!list_experts) return json;
  Json table{Json::Array()};
  for (uint64_t i = 0; i < folder.record_count(); ++i) {
    table.Append(DescribeRecord(folder, ExpertRecordId{i}.Key(folder.layout.num_experts)));
  }
  return json.Set("table", std::move(table));
}

}  // namespace smoe::store::records
