#include <filesystem>
#include <optional>

#include "base/memory.h"
#include "convert/shatter_plan.h"
#include "convert/store_target.h"
#include "io/atomic_file.h"
#include "store/vault/writer.h"
#include "tensor/dequantise.h"
#include "tensor/finite.h"

namespace smoe::convert {
namespace {

namespace vault = store::vault;
using tensor::WeightFormat;
using tensor::WeightView;

class VaultEncoder final : public ExpertEncoder {
 public:
  static Result<std::unique_ptr<ExpertEncoder>> Create(const vault::VaultPlan& plan,
                                                       tensor::Quantiser quantiser) {
    auto encoder = std::unique_ptr<VaultEncoder>(new VaultEncoder(plan, quantiser));
    SMOE_TRY_ASSIGN(encoder->blob_,
                    AlignedBuffer::Create(plan.padded_size(), "a converted expert"));
    const vault::VaultSpec& spec = plan.spec();
    SMOE_TRY_ASSIGN(encoder->matrix_,
                    AlignedBuffer::CreateTable(spec.hidden_size, spec.intermediate_size,
                                               sizeof(float), "a matrix of an expert"));
    return encoder;
  }

  MutableBytes buffer() override { return blob_.bytes(); }

  Status Encode(size_t index, const tensor::ExpertWeights& weights, ProjErrors* errors) override {
    const WeightView* views[] = {&weights.gate, &weights.up, &weights.down};
    for (size_t p = 0; p < checkpoint::kProjCount; ++p) {
      Status encoded = EncodeMatrix(p, *views[p], &(*errors)[p]);
      if (encoded) continue;
      const store::ExpertId id = plan_.spec().experts[index];
      return While(fmt::format("layer {}, expert {}, {}", id.layer_index, id.expert_index,
                               checkpoint::ProjName(static_cast<checkpoint::Proj>(p))),
                   std::move(encoded));
    }
    return Ok();
  }

 private:
  VaultEncoder(const vault::VaultPlan& plan, tensor::Quantiser quantiser)
      : plan_(plan), quantiser_(quantiser) {}

  Status EncodeMatrix(size_t p, const WeightView& view, tensor::QuantisationError* error) {
    const vault::VaultSpec& spec = plan_.spec();
    const vault::TensorPlace& place = plan_.tensors()[p];
    const MutableBytes packed = blob_.bytes().subspan(place.packed_offset, place.packed_size);
    const MutableBytes scales = blob_.bytes().subspan(place.scales_offset, place.scales_size);
    const std::span<float> matrix = matrix_.As<float>().first(uint64_t{view.rows} * view.cols);
    tensor::Dequantise(view, matrix);
    if (IsSameFormat(view)) {
      std::copy(view.data.begin(), view.data.end(), packed.begin());
      std::copy(view.scales.begin(), view.scales.end(), scales.begin());
    } else {
      SMOE_TRY(
          tensor::QuantiseSmoe(matrix, spec.bits, spec.group_size, quantiser_, packed, scales));
    }
    *error = tensor::MeasureError(matrix, packed, scales, spec.bits, spec.group_size);
    return Ok();
  }

  // Quantising again what is in this very format could only add error.
  bool IsSameFormat(const WeightView& view) const {
    const WeightFormat wanted =
        plan_.spec().bits == tensor::SmoeBits::kQ4 ? WeightFormat::kSmoeQ4 : WeightFormat::kSmoeQ2;
    return view.format == wanted && view.group_size == plan_.spec().group_size;
  }

  const vault::VaultPlan& plan_;
  const tensor::Quantiser quantiser_;
  AlignedBuffer blob_;
  AlignedBuffer matrix_;
};

class VaultFiller final : public ExpertFiller {
 public:
  static Result<std::unique_ptr<ExpertFiller>> Create(const vault::VaultPlan& plan,
                                                      const RandomExperts& random) {
    auto filler = std::unique_ptr<VaultFiller>(new VaultFiller(plan, random));
    SMOE_TRY_ASSIGN(filler->blob_, AlignedBuffer::Create(plan.padded_size(), "a random expert"));
    return filler;
  }

  MutableBytes buffer() override { return blob_.bytes(); }

  Status Fill(size_t index) override {
    for (size_t p = 0; p < checkpoint::kProjCount; ++p) {
      const vault::TensorPlace& place = plan_.tensors()[p];
      const RandomMatrix matrix = random_.Matrix(index, p);
      FillRandomCodes(matrix.codes_key,
                      blob_.bytes().subspan(place.packed_offset, place.packed_size));
      FillSmoeScales(matrix, plan_.spec().bits,
                     blob_.bytes().subspan(place.scales_offset, place.scales_size));
    }
    return Ok();
  }

 private:
  VaultFiller(const vault::VaultPlan& plan, const RandomExperts& random)
      : plan_(plan), random_(random) {}

  const vault::VaultPlan& plan_;
  const RandomExperts random_;
  AlignedBuffer blob_;
};

class VaultTarget final : public StoreTarget {
 public:
  VaultTarget(std::string out_path, vault::VaultPlan plan, tensor::Quantiser quantiser)
      : out_path_(std::move(out_path)), plan_(std::move(plan)), quantiser_(quantiser) {}

  std::string format_name() const override {
    return fmt::format("smoe-q{} group {}", static_cast<uint32_t>(plan_.spec().bits),
                       plan_.spec().group_size);
  }
  std::string final_path() const override { return out_path_; }
  std::string journal_path(bool) const override { return out_path_ + ".journal"; }
  uint64_t expert_bytes() const override { return plan_.blobs_end(); }
  uint64_t file_bytes(uint64_t size) const override {
    return RoundUp(size + sizeof(vault::AnnexDirectoryEntry), vault::kBlobAlignment);
  }
  uint64_t partial_bytes(bool) const override {
    std::error_code failed;
    const auto size = std::filesystem::file_size(out_path_ + ".partial", failed);
    return failed ? 0 : size;
  }

  // The parts are sections of the one file.
  Status CheckPlace(const std::vector<std::string>&, bool, bool force) const override {
    return io::CheckOutputPlace(out_path_, force);
  }

  Status Open(bool resume, bool force) override {
    SMOE_TRY_ASSIGN(io::AtomicFile file, io::AtomicFile::Open(out_path_, {force, resume}));
    file_.emplace(std::move(file));
    SMOE_TRY_ASSIGN(writer_, vault::VaultWriter::Create(file_->file(), plan_));
    return Ok();
  }

  Result<std::unique_ptr<ExpertEncoder>> MakeEncoder() const override {
    return VaultEncoder::Create(plan_, quantiser_);
  }

  Result<std::unique_ptr<ExpertFiller>> MakeFiller(const RandomExperts& random) const override {
    return VaultFiller::Create(plan_, random);
  }

  Result<uint64_t> Write(size_t index, Bytes buffer) override {
    SMOE_TRY(writer_->WriteBlob(index, buffer));
    return writer_->blob_checksum(index);
  }

  Result<bool> Restore(size_t index, uint64_t checksum, MutableBytes scratch) override {
    return writer_->RestoreBlob(index, checksum, scratch.first(plan_.raw_size()));
  }

  Status BeginFile(std::string_view part, uint64_t size) override {
    return writer_->BeginSection(part, size);
  }
  Status AppendFile(Bytes piece) override { return writer_->AppendSection(piece); }
  Status EndFile() override { return writer_->EndSection(); }

  Status Finish(const Json& origin) override {
    const std::string text = origin.Dump(2) + "\n";
    SMOE_TRY(writer_->AddSection(vault::kSectionOrigin, AsBytes(std::string_view(text))));
    return writer_->Finish();
  }
  void KeepPartial() override { file_->KeepPartial(); }
  Status Commit() override {
    writer_.reset();
    return file_->Commit();
  }

 private:
  const std::string out_path_;
  const vault::VaultPlan plan_;
  const tensor::Quantiser quantiser_;
  std::optional<io::AtomicFile> file_;
  std::unique_ptr<vault::VaultWriter> writer_;
};

}  // namespace

Result<std::unique_ptr<StoreTarget>> MakeVaultTarget(const TargetModel& model,
                                                     tensor::SmoeBits bits, uint32_t group_size,
                                                     tensor::Quantiser quantiser) {
  SMOE_TRY(tensor::CheckGroupSize(group_size));
  vault::VaultSpec spec;
  SMOE_TRY(
      DescribeModel(model.config, model.facts, model.hidden_size, model.intermediate_size, &spec));
  spec.bits = bits;
  spec.group_size = group_size;
  for (const store::StoreLayer& layer : model.layers) {
    for (uint32_t e = 0; e < layer.expert_count; ++e)
      spec.experts.push_back({layer.layer_index, e});
    ++spec.num_moe_layers;
    spec.max_experts_per_layer = std::max(spec.max_experts_per_layer, layer.expert_count);
  }
  SMOE_TRY_ASSIGN(vault::VaultPlan plan, vault::VaultPlan::Create(std::move(spec)));
  return std::unique_ptr<StoreTarget>(
      std::make_unique<VaultTarget>(model.out_path, std::move(plan), quantiser));
}

}  // namespace smoe::convert
