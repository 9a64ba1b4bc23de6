#include "convert/converter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <tuple>
#include <vector>

#include "base/memory.h"
#include "convert/files_for_test.h"
#include "convert/sculptor.h"
#include "io/atomic_file.h"
#include "store/read_expert.h"
#include "store/vault/vault.h"
#include "store/vault/writer.h"
#include "store/verify_model.h"
#include "tensor/quantise_nvfp4.h"

namespace smoe::convert {
namespace {

namespace fs = std::filesystem;
using store::ExpertId;
using testing::HasSubstr;

constexpr uint64_t kMatrixWeights = uint64_t{256} * 128;  // of tiny-moe
constexpr ExpertId kSome[] = {{0, 0}, {2, 7}, {3, 15}};

// A vault of tiny-moe, Q4 group 64.
std::string MakeVault(const TestFolder& folder, const ShatterOptions& options = {}) {
  NoProgress progress;
  const std::string path = folder.Path("source.smoe");
  const auto report = Shatter(TinyMoe(), path, options, progress);
  EXPECT_TRUE(report) << report.error().message();
  return path;
}

Result<ConvertReport> ConvertQuietly(const std::string& model, const std::string& out,
                                     const ConvertOptions& options) {
  NoProgress progress;
  return Convert(model, out, options, progress);
}

ConvertOptions ToRecords() {
  ConvertOptions options;
  options.to = StoreKind::kRecords;
  return options;
}

ConvertOptions ToVault(uint32_t group_size, tensor::SmoeBits bits = tensor::SmoeBits::kQ4) {
  ConvertOptions options;
  options.group_size = group_size;
  options.bits = bits;
  return options;
}

// An expert of a model, with its weights one by one by the definition of its format.
class OpenExpert {
 public:
  OpenExpert(const std::string& path, ExpertId id) {
    auto files = store::OpenModelFiles(path, {.direct_io = false});
    EXPECT_TRUE(files) << files.error().message();
    if (!files) return;
    files_ = std::move(*files);
    slot_ = *AlignedBuffer::Create(files_.experts->slot_bytes(), "test");
    EXPECT_TRUE(store::ReadExpert(*files_.experts, id, slot_.bytes()));
    weights_ = files_.experts->View(id, slot_.bytes());
  }
  const tensor::WeightView& view(size_t proj) const {
    return proj == 0 ? weights_.gate : proj == 1 ? weights_.up : weights_.down;
  }
  std::vector<float> Matrix(size_t proj) const {
    std::vector<float> matrix;
    for (uint32_t row = 0; row < view(proj).rows; ++row) {
      for (uint32_t col = 0; col < view(proj).cols; ++col) {
        matrix.push_back(tensor::WeightAt(view(proj), row, col));
      }
    }
    return matrix;
  }

 private:
  store::ModelFiles files_;
  AlignedBuffer slot_;
  tensor::ExpertWeights weights_;
};

void ExpectSound(const std::string& path) {
  const auto report = store::VerifyModel(path, {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(report->ok()) << testing::PrintToString(report->problems);
}

TEST(Converter, AnotherGroupSizeIsTheQuantisedDequantisedWeights) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  const std::string out = folder.Path("out.smoe");
  const auto report = ConvertQuietly(source, out, ToVault(32));
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->source_format, "smoe-q4 group 64");
  EXPECT_EQ(report->target_format, "smoe-q4 group 32");
  ExpectSound(out);
  for (const ExpertId id : kSome) {
    const OpenExpert before(source, id);
    const OpenExpert after(out, id);
    for (size_t proj = 0; proj < 3; ++proj) {
      const std::vector<float> matrix = before.Matrix(proj);
      std::vector<std::byte> packed(kMatrixWeights / 2);
      std::vector<std::byte> scales(kMatrixWeights / 32 * 2);
      ASSERT_TRUE(tensor::QuantiseSmoe(matrix, tensor::SmoeBits::kQ4, 32, tensor::Quantiser::kMse,
                                       packed, scales));
      EXPECT_TRUE(std::ranges::equal(packed, after.view(proj).data));
      EXPECT_TRUE(std::ranges::equal(scales, after.view(proj).scales));
      // A step of a group is 2/15 of its scale, and no scale is above its largest weight by much.
      const std::vector<float> now = after.Matrix(proj);
      for (size_t first = 0; first < matrix.size(); first += 32) {
        float largest = 0;
        for (size_t i = first; i < first + 32; ++i) {
          largest = std::max(largest, std::fabs(matrix[i]));
        }
        for (size_t i = first; i < first + 32; ++i) {
          ASSERT_LE(std::fabs(now[i] - matrix[i]), largest * 0.2f) << i;
        }
      }
    }
  }
}

// The report's figures against plain loops over the two stores.
TEST(Converter, TheErrorAddedIsThatOfPlainLoops) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  const std::string out = folder.Path("out.smoe");
  const auto report = ConvertQuietly(source, out, ToVault(64, tensor::SmoeBits::kQ2));
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_EQ(report->added.size(), 4u);
  double squared = 0;
  for (uint32_t expert = 0; expert < 16; ++expert) {
    const std::vector<float> a = OpenExpert(source, {1, expert}).Matrix(2);
    const std::vector<float> b = OpenExpert(out, {1, expert}).Matrix(2);
    for (size_t i = 0; i < a.size(); ++i) {
      squared += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    }
  }
  EXPECT_NEAR(report->added[1].projs[2].Rmse(), std::sqrt(squared / (16.0 * kMatrixWeights)),
              1e-12);
}

TEST(Converter, WhatIsInTheFormatAlreadyIsMoved) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  const std::string out = folder.Path("out.smoe");
  const auto report = ConvertQuietly(source, out, ToVault(64));
  ASSERT_TRUE(report) << report.error().message();
  for (const LayerErrors& layer : report->added) EXPECT_EQ(layer.Sum().squared_error, 0);
  const auto a = store::vault::OpenVault(source);
  const auto b = store::vault::OpenVault(out);
  ASSERT_TRUE(a && b);
  // Header, table, arch block and blobs: all that the original format has.
  EXPECT_EQ(ReadText(source).substr(0, a->blobs_end), ReadText(out).substr(0, b->blobs_end));
  for (const auto& section : a->annex->sections) {
    if (section.name == store::vault::kSectionOrigin) continue;
    const auto* other = b->annex->Find(section.name);
    ASSERT_NE(other, nullptr) << section.name;
    EXPECT_EQ(other->checksum, section.checksum) << section.name;
  }
}

TEST(Converter, ARecordStoreHoldsTheQuantisedDequantisedWeights) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  const std::string out = folder.Path("records");
  const auto report = ConvertQuietly(source, out, ToRecords());
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->target_format, "nvfp4 group 16");
  ExpectSound(out);
  EXPECT_FALSE(fs::exists(folder.Path("records/convert.journal")));
  for (const ExpertId id : kSome) {
    const OpenExpert before(source, id);
    const OpenExpert after(out, id);
    for (size_t proj = 0; proj < 3; ++proj) {
      const std::vector<float> matrix = before.Matrix(proj);
      std::vector<std::byte> packed(kMatrixWeights / 2);
      std::vector<std::byte> scales(kMatrixWeights / 16);
      const float scale2 = tensor::Nvfp4GlobalScale(matrix);
      tensor::QuantiseNvfp4(matrix, scale2, tensor::Nvfp4Quantiser::kMse, packed, scales);
      std::vector<float> expected(kMatrixWeights);
      tensor::DequantiseNvfp4(packed, scales, scale2, expected);
      EXPECT_EQ(after.Matrix(proj), expected) << proj;
    }
  }
}

TEST(Converter, ThereAndBackKeepsEverythingButTheExperts) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  ASSERT_TRUE(ConvertQuietly(source, folder.Path("records"), ToRecords()));
  const auto report = ConvertQuietly(folder.Path("records"), folder.Path("back.smoe"), ToVault(64));
  ASSERT_TRUE(report) << report.error().message();
  ExpectSound(folder.Path("back.smoe"));
  const auto a = store::vault::OpenVault(source);
  const auto b = store::vault::OpenVault(folder.Path("back.smoe"));
  ASSERT_TRUE(a && b);
  for (const std::string_view name :
       {store::vault::kSectionTrunk, store::vault::kSectionConfig, store::vault::kSectionTokenizer,
        store::vault::kSectionTokenizerConfig, store::vault::kSectionGenerationConfig,
        store::vault::kSectionChatTemplate}) {
    ASSERT_NE(b->annex->Find(name), nullptr) << name;
    EXPECT_EQ(b->annex->Find(name)->checksum, a->annex->Find(name)->checksum) << name;
  }
  const auto origin =
      store::vault::ReadAnnexSection(b->file, *b->annex->Find(store::vault::kSectionOrigin));
  ASSERT_TRUE(origin);
  EXPECT_THAT(*origin, HasSubstr("\"converted_from\": \"nvfp4 group 16\""));
  EXPECT_THAT(*origin, HasSubstr("\"converted_from\": \"smoe-q4 group 64\""));
}

TEST(Converter, ASplitVaultBecomesOneFile) {
  const TestFolder folder;
  ShatterOptions split;
  split.split = true;
  const std::string source = MakeVault(folder, split);
  const std::string out = folder.Path("sub.smoe");
  ConvertOptions options = ToVault(64);
  options.files.config = TinyMoe();
  const auto report = ConvertQuietly(source, out, options);
  ASSERT_TRUE(report) << report.error().message();
  ExpectSound(out);
  const auto vault = store::vault::OpenVault(out);
  ASSERT_TRUE(vault);
  EXPECT_NE(vault->annex->Find(store::vault::kSectionTrunk), nullptr);
  EXPECT_NE(vault->annex->Find(store::vault::kSectionTokenizer), nullptr);
}

// Against the checkpoint, both stores: what CompareExperts says of them.
TEST(Converter, MeasuresAgainstTheOriginal) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  ConvertOptions options = ToVault(128);
  options.original = TinyMoe();
  const auto report = ConvertQuietly(source, folder.Path("out.smoe"), options);
  ASSERT_TRUE(report) << report.error().message();
  ASSERT_EQ(report->source_to_original.size(), 4u);
  ASSERT_EQ(report->target_to_original.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_LT(report->source_to_original[i].Sum().Rmse(),
              report->target_to_original[i].Sum().Rmse());
    EXPECT_GT(report->added[i].Sum().Rmse(), 0);
  }
}

TEST(Converter, TheBytesDoNotDependOnTheThreads) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  for (const uint32_t threads : {1u, 3u}) {
    ConvertOptions options = ToVault(16);
    options.threads = threads;
    ASSERT_TRUE(ConvertQuietly(source, folder.Path(fmt::format("{}.smoe", threads)), options));
  }
  EXPECT_EQ(ReadText(folder.Path("1.smoe")), ReadText(folder.Path("3.smoe")));
}

// A process that converts and dies at its 80th step, after the trunk and some experts.
bool DiesInTheMiddle(const std::string& source, const std::string& out,
                     const ConvertOptions& options) {
  constexpr int kDied = 7;
  const int status = InChild([&] {
    int steps = 0;
    CallbackProgress progress([&] {
      if (++steps == 80) ::_exit(kDied);
    });
    return Convert(source, out, options, progress) ? 0 : 1;
  });
  return WIFEXITED(status) && WEXITSTATUS(status) == kDied;
}

TEST(Converter, AKilledConversionResumesToTheSameBytes) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  for (const StoreKind to : {StoreKind::kVault, StoreKind::kRecords}) {
    const bool is_vault = to == StoreKind::kVault;
    ConvertOptions options = ToVault(32);
    options.to = to;
    options.threads = 1;
    const std::string whole = folder.Path(is_vault ? "whole.smoe" : "whole");
    const std::string out = folder.Path(is_vault ? "out.smoe" : "out");
    ASSERT_TRUE(ConvertQuietly(source, whole, options));
    ASSERT_TRUE(DiesInTheMiddle(source, out, options));
    EXPECT_FALSE(store::OpenModelFiles(out, {}));
    options.resume = true;
    ConvertOptions other = options;
    other.vault_quantiser = tensor::Quantiser::kReference;
    other.record_quantiser = tensor::Nvfp4Quantiser::kAmax;
    const auto refused = ConvertQuietly(source, out, other);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalid);
    EXPECT_THAT(refused.error().message(), HasSubstr("quantiser"));
    const auto report = ConvertQuietly(source, out, options);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_GT(report->resumed_expert_count, 5u);
    EXPECT_LT(report->resumed_expert_count, 64u);
    if (is_vault) {
      EXPECT_EQ(ReadText(whole), ReadText(out));
      EXPECT_FALSE(fs::exists(out + ".journal"));
      continue;
    }
    for (const auto& entry : fs::directory_iterator(whole)) {
      const std::string name = entry.path().filename().string();
      EXPECT_EQ(ReadText(entry.path().string()), ReadText(out + "/" + name)) << name;
    }
  }
}

// The same where OUT is there already, of another group size or quantiser.
TEST(Converter, AKilledReplacementLeavesTheOlderStoreAndIsGoneOnWith) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  for (const StoreKind to : {StoreKind::kVault, StoreKind::kRecords}) {
    const bool is_vault = to == StoreKind::kVault;
    ConvertOptions options = ToVault(32);
    options.to = to;
    options.threads = 1;
    const std::string out = folder.Path(is_vault ? "out.smoe" : "out");
    const std::string last = is_vault ? out : out + "/manifest.json";
    const std::string work = is_vault ? out : out + ".partial";
    ASSERT_TRUE(ConvertQuietly(source, out, options));
    const std::string before = ReadText(last);
    options.group_size = 128;
    options.record_quantiser = tensor::Nvfp4Quantiser::kAmax;
    options.force = true;
    ASSERT_TRUE(DiesInTheMiddle(source, out, options));
    EXPECT_EQ(ReadText(last), before);
    ExpectSound(out);
    options.resume = true;
    const auto report = ConvertQuietly(source, out, options);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_GT(report->resumed_expert_count, 5u);
    EXPECT_NE(ReadText(last), before);
    ExpectSound(out);
    for (const char* left : {".partial", ".journal", "/convert.journal"}) {
      EXPECT_FALSE(fs::exists(out + left)) << left;
    }
    // Killed after the last rename: the journal is of nothing.
    const std::string journal = is_vault ? out + ".journal" : out + "/convert.journal";
    WriteText(journal, "{}\n");
    options.force = false;
    EXPECT_FALSE(ConvertQuietly(source, out, options));
    EXPECT_FALSE(fs::exists(journal));
    EXPECT_FALSE(fs::exists(work + ".partial"));
  }
}

TEST(Converter, ADryRunWritesNothing) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  for (ConvertOptions options : {ToVault(32), ToRecords()}) {
    options.dry_run = true;
    const auto report = ConvertQuietly(source, folder.Path("out"), options);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_GT(report->out_bytes, uint64_t{64} * 3 * kMatrixWeights / 2);
    EXPECT_FALSE(fs::exists(folder.Path("out")));
    EXPECT_FALSE(fs::exists(folder.Path("out.partial")));
  }
}

TEST(Converter, ADamagedExpertIsNamedAndNothingIsLeft) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  const auto vault = store::vault::OpenVault(source);
  ASSERT_TRUE(vault);
  std::string bytes = ReadText(source);
  bytes[vault->records[40].byte_offset + 1000] ^= 1;
  WriteText(source, bytes);
  for (const bool to_vault : {true, false}) {
    const auto report =
        ConvertQuietly(source, folder.Path("out"), to_vault ? ToVault(32) : ToRecords());
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(report.error().message(), HasSubstr("checksum"));
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator(fs::path(source).parent_path())) {
      left.push_back(entry.path().filename().string());
    }
    EXPECT_EQ(left, std::vector<std::string>{"source.smoe"});
  }
}

// A weight of another value is a weight: only the checksum knows.
TEST(Converter, ADamagedTrunkIsNamedAndNothingIsLeft) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  const std::string records = folder.Path("records");
  ASSERT_TRUE(ConvertQuietly(source, records, ToRecords()));
  const auto vault = store::vault::OpenVault(source);
  ASSERT_TRUE(vault);
  const auto* trunk = vault->annex->Find(store::vault::kSectionTrunk);
  ASSERT_NE(trunk, nullptr);
  std::string bytes = ReadText(source);
  bytes[trunk->offset + trunk->size / 2] ^= 1;
  WriteText(source, bytes);
  const std::string stored = records + "/trunk.safetensors";
  bytes = ReadText(stored);
  ASSERT_FALSE(bytes.empty());
  bytes[bytes.size() / 2] ^= 1;
  WriteText(stored, bytes);

  ConvertOptions quantised = ToVault(64);
  quantised.trunk_formats = checkpoint::TrunkFormats::All(checkpoint::TrunkFormat::kInt8);
  const std::tuple<std::string, ConvertOptions> kCases[] = {
      {source, ToVault(64)}, {source, quantised}, {source, ToRecords()}, {records, ToVault(64)}};
  for (const auto& [model, options] : kCases) {
    const std::string out = folder.Path("out");
    const auto report = ConvertQuietly(model, out, options);
    ASSERT_FALSE(report) << model;
    EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(report.error().message(), HasSubstr("trunk: checksum is"));
    EXPECT_FALSE(fs::exists(out));
    EXPECT_FALSE(fs::exists(out + ".partial"));
  }
}

TEST(Converter, RefusesByName) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  const std::string records = folder.Path("records");
  ASSERT_TRUE(ConvertQuietly(source, records, ToRecords()));
  const std::string before = ReadText(source);
  WriteText(folder.Path("there.smoe"), "x");
  ConvertOptions original = ToVault(32);
  original.original = "/no/such";
  ConvertOptions forced = ToVault(32);
  forced.force = true;
  ConvertOptions forced_records = ToRecords();
  forced_records.force = true;
  ConvertOptions many_threads = forced_records;
  many_threads.threads = 5000;
  ConvertOptions dry = ToRecords();
  dry.dry_run = true;
  ConvertOptions dry_vault = ToVault(32);
  dry_vault.dry_run = true;
  fs::create_directory(folder.Path("full"));
  WriteText(folder.Path("full/tokenizer.json"), "precious");
  struct Case {
    std::string model;
    std::string out;
    ConvertOptions options;
    std::string message;
  };
  const Case cases[] = {
      {TinyMoe(), folder.Path("a.smoe"), ToVault(32), "smoe shatter"},
      {"/no/such.smoe", folder.Path("a.smoe"), ToVault(32), "/no/such.smoe: no such file"},
      {source, folder.Path("there.smoe"), ToVault(32), "there.smoe: exists; --force"},
      {source, source, forced, source},
      {records, folder.Path("records/a.smoe"), ToVault(32), "lies in"},
      {records, records, forced, "records"},
      {records, folder.Path("other"), ToRecords(), "is a record store already"},
      {source, records, ToRecords(), "manifest.json: exists; --force"},
      {source, folder.Path("there.smoe"), forced_records, "is a file"},
      {source, records, many_threads, "--threads: 5000"},
      {source, folder.Path("full"), dry, "tokenizer.json: exists; --force"},
      {source, folder.Path("no/such/records"), dry, "make it first"},
      {records, folder.Path("no/such/a.smoe"), dry_vault, "make it first"},
      {source, folder.Path("a.smoe"), ToVault(33), "33"},
      {source, folder.Path("a.smoe"), original, "/no/such"},
      {source, "", ToVault(32), "OUT: the name is empty"},
  };
  for (const Case& item : cases) {
    const auto report = ConvertQuietly(item.model, item.out, item.options);
    ASSERT_FALSE(report) << item.message;
    EXPECT_EQ(report.error().code(), ErrorCode::kInvalid) << report.error().message();
    EXPECT_THAT(report.error().message(), HasSubstr(item.message));
  }
  EXPECT_EQ(ReadText(source), before);
  EXPECT_EQ(ReadText(folder.Path("there.smoe")), "x");
  EXPECT_FALSE(fs::exists(folder.Path("a.smoe")));
  ExpectSound(records);
}

TEST(Converter, AnOriginalOfAnotherShapeIsRefusedBeforeAnythingIsWritten) {
  if (!fs::exists(Reference("checkpoints"))) GTEST_SKIP() << "no " << Reference("checkpoints");
  const TestFolder folder;
  ConvertOptions options = ToVault(32);
  options.original = Reference("checkpoints/qwen3_moe");
  const auto report = ConvertQuietly(MakeVault(folder), folder.Path("out.smoe"), options);
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().message(), HasSubstr("hidden_size"));
  EXPECT_FALSE(fs::exists(folder.Path("out.smoe")));
}

// Groups that straddle rows.
TEST(Converter, SaysThatAVaultHasNoPlaceForInputScales) {
  const std::string reference = Reference("nvfp4");
  if (!fs::exists(reference)) GTEST_SKIP() << "no reference data at " << reference;
  for (const auto& [store, has_them] :
       {std::pair("a64x128-store", true), std::pair("b16x32-store-part-input", true),
        std::pair("a64x128-store-no-input", false)}) {
    const TestFolder folder;
    ConvertOptions options = ToVault(16);
    options.files.trunk =
        reference + "/" + std::string(store).substr(0, std::string(store).find('-')) + "-modelopt";
    const auto report = ConvertQuietly(reference + "/" + store, folder.Path("out.smoe"), options);
    ASSERT_TRUE(report) << report.error().message();
    const bool is_said =
        std::any_of(report->warnings.begin(), report->warnings.end(), [](const std::string& text) {
          return text.starts_with("input_scale of the records is left out");
        });
    EXPECT_EQ(is_said, has_them) << store;
  }
}

TEST(Converter, TakesOddShapes) {
  if (!fs::exists(Reference("checkpoints"))) GTEST_SKIP() << "no " << Reference("checkpoints");
  const TestFolder folder;
  NoProgress progress;
  const std::string source = folder.Path("odd.smoe");
  ShatterOptions shatter;
  shatter.group_size = 8;
  ASSERT_TRUE(Shatter(Reference("checkpoints/qwen3_moe_odd"), source, shatter, progress));
  ASSERT_TRUE(ConvertQuietly(source, folder.Path("out.smoe"), ToVault(128, tensor::SmoeBits::kQ2)));
  ExpectSound(folder.Path("out.smoe"));
  ASSERT_TRUE(ConvertQuietly(source, folder.Path("records"), ToRecords()));
  ExpectSound(folder.Path("records"));
}

// A vault with a section that this program does not know.
TEST(Converter, UnknownSectionsGoAlong) {
  const TestFolder folder;
  const std::string source = MakeVault(folder);
  const auto vault = store::vault::OpenVault(source);
  ASSERT_TRUE(vault);
  store::vault::VaultSpec spec;
  for (const auto& record : vault->records) spec.experts.push_back(record.id);
  spec.hidden_size = vault->hidden_size;
  spec.intermediate_size = vault->intermediate_size;
  spec.num_moe_layers = 4;
  spec.max_experts_per_layer = 16;
  spec.vocab_size = vault->header.vocab_size;
  spec.ffn_dim = vault->header.ffn_dim;
  spec.arch = *vault->arch;
  auto plan = store::vault::VaultPlan::Create(spec);
  ASSERT_TRUE(plan) << plan.error().message();
  const std::string with = folder.Path("with.smoe");
  auto file = io::AtomicFile::Open(with, {});
  ASSERT_TRUE(file);
  auto writer = store::vault::VaultWriter::Create(file->file(), *plan);
  ASSERT_TRUE(writer);
  for (size_t i = 0; i < vault->records.size(); ++i) {
    auto blob = *AlignedBuffer::Create(plan->padded_size(), "test");
    ASSERT_TRUE(
        vault->file.ReadAt(vault->records[i].byte_offset, blob.bytes().first(plan->raw_size())));
    ASSERT_TRUE((*writer)->WriteBlob(i, blob.bytes()));
  }
  for (const auto& section : vault->annex->sections) {
    if (section.name == store::vault::kSectionChecksums) continue;
    const auto content = store::vault::ReadAnnexSection(vault->file, section);
    ASSERT_TRUE((*writer)->AddSection(section.name, AsBytes(std::string_view(*content))));
  }
  ASSERT_TRUE((*writer)->AddSection("notes.txt", AsBytes(std::string_view("keep me"))));
  ASSERT_TRUE((*writer)->Finish());
  ASSERT_TRUE(file->Commit());

  ASSERT_TRUE(ConvertQuietly(with, folder.Path("records"), ToRecords()));
  EXPECT_EQ(ReadText(folder.Path("records/notes.txt")), "keep me");
  ASSERT_TRUE(ConvertQuietly(folder.Path("records"), folder.Path("back.smoe"), ToVault(64)));
  const auto back = store::vault::OpenVault(folder.Path("back.smoe"));
  ASSERT_TRUE(back);
  ASSERT_NE(back->annex->Find("notes.txt"), nullptr);
  EXPECT_EQ(*store::vault::ReadAnnexSection(back->file, *back->annex->Find("notes.txt")),
            "keep me");
}

}  // namespace
}  // namespace smoe::convert
