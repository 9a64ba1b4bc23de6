#include <sys/stat.h>

#include <filesystem>

#include "base/memory.h"
#include "convert/packer.h"
#include "convert/store_target.h"
#include "store/records/record.h"
#include "store/records/writer.h"
#include "tensor/dequantise.h"
#include "tensor/finite.h"
#include "tensor/quantise_nvfp4.h"

namespace smoe::convert {
namespace {

namespace records = store::records;
using tensor::WeightView;

constexpr char kConvertJournalName[] = "convert.journal";

class RecordEncoder final : public ExpertEncoder {
 public:
  static Result<std::unique_ptr<ExpertEncoder>> Create(const records::ExpertIndex& index,
                                                       const records::ExpertRecordSpec& spec,
                                                       tensor::Nvfp4Quantiser quantiser) {
    auto encoder = std::unique_ptr<RecordEncoder>(new RecordEncoder(index, spec, quantiser));
    SMOE_TRY_ASSIGN(encoder->record_,
                    AlignedBuffer::Create(index.record_stride, "a converted expert"));
    SMOE_TRY_ASSIGN(encoder->matrix_,
                    AlignedBuffer::CreateTable(spec.hidden, spec.inter, sizeof(float),
                                               "a matrix of an expert"));
    for (size_t p = 0; p < records::kProjCount; ++p) {
      encoder->packed_[p].resize(spec.projs[p].bytes.packed);
      encoder->scales_[p].resize(spec.projs[p].bytes.scale);
    }
    return encoder;
  }

  MutableBytes buffer() override { return record_.bytes(); }

  Status Encode(size_t index, const tensor::ExpertWeights& weights, ProjErrors* errors) override {
    const WeightView* views[] = {&weights.gate, &weights.up, &weights.down};
    const records::ExpertKey key = records::ExpertRecordId{index}.Key(index_.num_experts);
    records::ExpertParts parts;
    for (size_t p = 0; p < records::kProjCount; ++p) {
      const std::span<float> matrix =
          matrix_.As<float>().first(uint64_t{views[p]->rows} * views[p]->cols);
      tensor::Dequantise(*views[p], matrix);
      const auto bad = tensor::FindNonFinite(tensor::DType::kF32, std::as_bytes(matrix));
      if (bad) {
        return Corrupt("layer {}, expert {}, {}: weight {} is {}, expected a finite number",
                       index_.moe_layer_to_model_layer[key.layer], key.expert,
                       checkpoint::ProjName(static_cast<checkpoint::Proj>(p)), *bad, matrix[*bad]);
      }
      records::ProjParts& part = parts.projs[p];
      part.scale2 = tensor::Nvfp4GlobalScale(matrix);
      (*errors)[p] = tensor::QuantiseNvfp4(matrix, part.scale2, quantiser_, packed_[p], scales_[p]);
      part.packed = packed_[p];
      part.scale = scales_[p];
    }
    return records::PackRecord(spec_, key, parts, records::PartsOrder::kCheckpoint,
                               record_.bytes());
  }

 private:
  RecordEncoder(const records::ExpertIndex& index, const records::ExpertRecordSpec& spec,
                tensor::Nvfp4Quantiser quantiser)
      : index_(index), spec_(spec), quantiser_(quantiser) {}

  const records::ExpertIndex& index_;
  const records::ExpertRecordSpec& spec_;
  const tensor::Nvfp4Quantiser quantiser_;
  AlignedBuffer record_;
  AlignedBuffer matrix_;
  std::vector<std::byte> packed_[records::kProjCount];
  std::vector<std::byte> scales_[records::kProjCount];
};

class RecordFiller final : public ExpertFiller {
 public:
  static Result<std::unique_ptr<ExpertFiller>> Create(const records::ExpertIndex& index,
                                                      const records::ExpertRecordSpec& spec,
                                                      const RandomExperts& random) {
    auto filler = std::unique_ptr<RecordFiller>(new RecordFiller(index, spec, random));
    SMOE_TRY_ASSIGN(filler->record_, AlignedBuffer::Create(index.record_stride, "a random expert"));
    for (size_t p = 0; p < records::kProjCount; ++p) {
      filler->packed_[p].resize(spec.projs[p].bytes.packed);
      filler->scales_[p].resize(spec.projs[p].bytes.scale);
    }
    return filler;
  }

  MutableBytes buffer() override { return record_.bytes(); }

  Status Fill(size_t index) override {
    records::ExpertParts parts;
    for (size_t p = 0; p < records::kProjCount; ++p) {
      const RandomMatrix matrix = random_.Matrix(index, p);
      FillRandomCodes(matrix.codes_key, packed_[p]);
      records::ProjParts& part = parts.projs[p];
      part.scale2 = FillNvfp4Scales(matrix, scales_[p]);
      part.packed = packed_[p];
      part.scale = scales_[p];
    }
    const records::ExpertKey key = records::ExpertRecordId{index}.Key(index_.num_experts);
    return records::PackRecord(spec_, key, parts, records::PartsOrder::kRecord, record_.bytes());
  }

 private:
  RecordFiller(const records::ExpertIndex& index, const records::ExpertRecordSpec& spec,
               const RandomExperts& random)
      : index_(index), spec_(spec), random_(random) {}

  const records::ExpertIndex& index_;
  const records::ExpertRecordSpec& spec_;
  const RandomExperts random_;
  AlignedBuffer record_;
  std::vector<std::byte> packed_[records::kProjCount];
  std::vector<std::byte> scales_[records::kProjCount];
};

class RecordTarget final : public StoreTarget {
 public:
  RecordTarget(std::string out_path, records::ExpertIndex index, records::ExpertRecordSpec spec,
               tensor::Nvfp4Quantiser quantiser)
      : out_path_(std::move(out_path)),
        index_(std::move(index)),
        spec_(spec),
        quantiser_(quantiser) {}

  std::string format_name() const override {
    return fmt::format("nvfp4 group {}", spec_.group_size);
  }
  std::string final_path() const override { return PathIn(out_path_, records::kManifestName); }
  std::string journal_path(bool force) const override {
    return PathIn(records::RecordWriter::WorkFolder(out_path_, force), kConvertJournalName);
  }
  uint64_t expert_bytes() const override {
    return index_.num_moe_layers * index_.Layout().FileBytes();
  }
  uint64_t file_bytes(uint64_t size) const override { return size; }

  uint64_t partial_bytes(bool force) const override {
    constexpr uint64_t kStatBlockBytes = 512;
    const std::string folder = records::RecordWriter::WorkFolder(out_path_, force);
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < index_.num_moe_layers; ++layer) {
      const std::string path = PathIn(folder, records::ExpertIndex::FileName(layer));
      for (const std::string& name : {path, path + ".partial"}) {
        struct stat info = {};
        if (::stat(name.c_str(), &info) != 0) continue;
        bytes += static_cast<uint64_t>(info.st_blocks) * kStatBlockBytes;
      }
    }
    return bytes;
  }

  Status CheckPlace(const std::vector<std::string>& parts, bool resume, bool force) const override {
    std::vector<std::string> names = parts;
    names.emplace_back(kTrunkName);
    return records::RecordWriter::CheckPlace(out_path_, names, {force, resume});
  }

  Status Open(bool resume, bool force) override {
    SMOE_TRY_ASSIGN(writer_, records::RecordWriter::Create(out_path_, index_, {force, resume}));
    return Ok();
  }

  Result<std::unique_ptr<ExpertEncoder>> MakeEncoder() const override {
    return RecordEncoder::Create(index_, spec_, quantiser_);
  }

  Result<std::unique_ptr<ExpertFiller>> MakeFiller(const RandomExperts& random) const override {
    return RecordFiller::Create(index_, spec_, random);
  }

  Result<uint64_t> Write(size_t index, Bytes buffer) override {
    SMOE_TRY(writer_->WriteRecord(KeyOf(index), buffer));
    return writer_->record_checksum(KeyOf(index));
  }

  Result<bool> Restore(size_t index, uint64_t checksum, MutableBytes scratch) override {
    return writer_->RestoreRecord(KeyOf(index), checksum, scratch.first(spec_.raw_bytes));
  }

  Status BeginFile(std::string_view part, uint64_t size) override {
    return writer_->BeginFile(part, part == records::kPartTrunk ? kTrunkName : part, size);
  }
  Status AppendFile(Bytes piece) override { return writer_->AppendFile(piece); }
  Status EndFile() override { return writer_->EndFile(); }

  Status Finish(const Json& origin) override {
    writer_->set_source(origin);
    return Ok();
  }
  void KeepPartial() override { writer_->KeepPartial(); }
  // The manifest is what makes a store of the files.
  Status Commit() override { return writer_->Finish(); }

 private:
  static std::string PathIn(const std::string& folder, std::string_view name) {
    return (std::filesystem::path(folder) / name).string();
  }
  records::ExpertKey KeyOf(size_t index) const {
    return records::ExpertRecordId{index}.Key(index_.num_experts);
  }

  const std::string out_path_;
  const records::ExpertIndex index_;
  const records::ExpertRecordSpec spec_;
  const tensor::Nvfp4Quantiser quantiser_;
  std::unique_ptr<records::RecordWriter> writer_;
};

}  // namespace

Result<std::unique_ptr<StoreTarget>> MakeRecordTarget(const TargetModel& model,
                                                      tensor::Nvfp4Quantiser quantiser) {
  records::ExpertIndex index;
  index.inter = model.intermediate_size;
  index.hidden = model.hidden_size;
  for (const store::StoreLayer& layer : model.layers) {
    if (index.num_moe_layers == 0) index.num_experts = layer.expert_count;
    if (layer.expert_count != index.num_experts) {
      return Unsupported(
          "{}: layer {} has {} experts, layer {} has {}; a record store has as many "
          "in each",
          model.source_path, layer.layer_index, layer.expert_count, model.layers[0].layer_index,
          index.num_experts);
    }
    ++index.num_moe_layers;
    index.moe_layer_to_model_layer.push_back(layer.layer_index);
  }
  SMOE_TRY_ASSIGN(const records::ExpertRecordSpec spec, records::DeriveSizes(&index));
  return std::unique_ptr<StoreTarget>(
      std::make_unique<RecordTarget>(model.out_path, std::move(index), spec, quantiser));
}

}  // namespace smoe::convert
