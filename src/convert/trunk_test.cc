// Quantised trunks in files: what is written, moved, measured and refused.
#include "convert/trunk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "checkpoint/safetensors.h"
#include "convert/converter.h"
#include "convert/files_for_test.h"
#include "convert/packer.h"
#include "convert/sculptor.h"
#include "store/vault/vault.h"
#include "store/verify_model.h"

namespace smoe::convert {
namespace {

using checkpoint::TensorFiles;
using checkpoint::TrunkFormat;
using checkpoint::TrunkFormats;

const char* const kQ = "model.layers.1.self_attn.q_proj";

std::vector<float> Matrix(const TensorFiles& files, const std::string& stem) {
  const auto weight = checkpoint::FindLinear(files, stem, {});
  EXPECT_TRUE(weight) << weight.error().message();
  if (!weight) return {};
  std::vector<float> values(weight->shape[0] * weight->shape[1]);
  std::vector<std::byte> staging;
  EXPECT_TRUE(checkpoint::ReadLinearRows(files, *weight, 0, values, &staging));
  return values;
}

ShatterReport MustShatter(const std::string& out, TrunkFormat format, bool split) {
  ShatterOptions options;
  options.trunk_formats = TrunkFormats::All(format);
  options.split = split;
  NoProgress progress;
  const auto report = Shatter(TinyMoe(), out, options, progress);
  EXPECT_TRUE(report) << report.error().message();
  return report ? *report : ShatterReport{};
}

TEST(QuantisedTrunkFile, IsAsFarFromTheSourceAsItsReportSays) {
  const TestFolder folder;
  const auto source = TensorFiles::Open(TinyMoe());
  ASSERT_TRUE(source);
  for (const TrunkFormat format : {TrunkFormat::kInt8, TrunkFormat::kQ4}) {
    const ShatterReport report = MustShatter(
        folder.Path(std::string(checkpoint::TrunkFormatName(format)) + ".smoe"), format, true);
    const auto trunk = TensorFiles::Open(report.scout_path);
    ASSERT_TRUE(trunk) << trunk.error().message();
    const std::vector<float> before = Matrix(*source, "lm_head");
    const std::vector<float> after = Matrix(*trunk, "lm_head");
    ASSERT_EQ(before.size(), after.size());
    double squared_error = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      squared_error += std::pow(double{before[i]} - double{after[i]}, 2);
    }
    const auto& error = report.trunk_errors[static_cast<size_t>(checkpoint::TrunkPart::kHead)];
    EXPECT_EQ(error.weight_count, before.size());
    EXPECT_NEAR(error.squared_error, squared_error, squared_error * 1e-9);
    EXPECT_GT(error.squared_error, 0);
    // Routers and norms are the source's own.
    for (const char* name : {"model.layers.0.mlp.gate.weight", "model.norm.weight"}) {
      EXPECT_EQ(trunk->Find(name)->dtype, source->Find(name)->dtype) << name;
    }
  }
}

TEST(QuantisedTrunkFile, HasTheSameBytesInAVaultInAStoreAndAfterAConversion) {
  const TestFolder folder;
  const ShatterReport split = MustShatter(folder.Path("s.smoe"), TrunkFormat::kInt8, true);
  const std::string trunk = ReadText(split.scout_path);
  NoProgress progress;
  PackOptions pack;
  pack.trunk_formats = TrunkFormats::All(TrunkFormat::kInt8);
  ASSERT_TRUE(Pack(TinyMoe(), folder.Path("records"), pack, progress));
  EXPECT_EQ(ReadText(folder.Path("records/trunk.safetensors")), trunk);
  MustShatter(folder.Path("whole.smoe"), TrunkFormat::kInt8, false);
  for (const TrunkFormat format : {TrunkFormat::kSource, TrunkFormat::kInt8, TrunkFormat::kBf16}) {
    ConvertOptions convert;
    convert.to = StoreKind::kRecords;
    convert.trunk_formats = TrunkFormats::All(format);
    convert.force = true;
    const auto report = Convert(folder.Path("whole.smoe"), folder.Path("moved"), convert, progress);
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(ReadText(folder.Path("moved/trunk.safetensors")), trunk);
    for (const auto& error : report->trunk_errors) EXPECT_EQ(error.weight_count, 0u);
  }
}

// One byte of a split vault's trunk, which has no checksum.
std::vector<std::string> ProblemsAfter(const std::string& scout, const std::string& tensor,
                                       uint64_t offset, const std::string& bytes) {
  const std::string whole = ReadText(scout);
  const auto files = TensorFiles::Open(scout);
  EXPECT_TRUE(files);
  std::string damaged = whole;
  damaged.replace(files->Find(tensor)->offset + offset, bytes.size(), bytes);
  WriteText(scout, damaged);
  std::string vault = scout;
  vault.replace(vault.find(".scout.safetensors"), std::string::npos, ".smoe");
  const auto report = store::VerifyModel(vault, {});
  WriteText(scout, whole);
  EXPECT_TRUE(report) << report.error().message();
  return report ? report->problems : std::vector<std::string>{};
}

TEST(QuantisedTrunkFile, VerifyNamesWhatIsDamaged) {
  const TestFolder folder;
  const ShatterReport split = MustShatter(folder.Path("s.smoe"), TrunkFormat::kInt8, true);
  ASSERT_TRUE(store::VerifyModel(folder.Path("s.smoe"), {})->problems.empty());
  const std::string q = kQ;
  const auto expect = [&](const std::string& tensor, uint64_t offset, const std::string& bytes,
                          const std::string& words) {
    const auto problems = ProblemsAfter(split.scout_path, tensor, offset, bytes);
    ASSERT_FALSE(problems.empty()) << words;
    EXPECT_NE(problems.back().find(words), std::string::npos) << problems.back();
  };
  expect(q + ".weight", 300, "\x80", "tensor " + q + ".weight: element 300 is -128");
  const std::string scale = q + ".weight_int8_scale";
  expect(scale, 8, std::string("\x00\x00\xc0\x7f", 4), "tensor " + scale + ": element 2 is nan");
  expect(scale, 8, std::string("\x00\x00\x80\xbf", 4), "tensor " + scale + ": element 2 is -1");
}

// The trunk beside a split vault has no checksum; the copy would have one.
TEST(QuantisedTrunkFile, ConvertNamesWhatIsDamagedAndLeavesNothing) {
  const TestFolder folder;
  const ShatterReport split = MustShatter(folder.Path("s.smoe"), TrunkFormat::kInt8, true);
  const std::string whole = ReadText(split.scout_path);
  const std::string codes = std::string(kQ) + ".weight";
  const std::string scales = std::string(kQ) + ".weight_int8_scale";
  const auto files = TensorFiles::Open(split.scout_path);
  ASSERT_TRUE(files);
  NoProgress progress;
  const auto convert = [&] {
    ConvertOptions options;
    options.to = StoreKind::kRecords;
    return Convert(folder.Path("s.smoe"), folder.Path("moved"), options, progress);
  };
  const auto expect = [&](const std::string& tensor, uint64_t offset, const std::string& bytes,
                          const std::string& words) {
    std::string damaged = whole;
    damaged.replace(files->Find(tensor)->offset + offset, bytes.size(), bytes);
    WriteText(split.scout_path, damaged);
    const auto report = convert();
    ASSERT_FALSE(report) << words;
    EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
    EXPECT_NE(report.error().message().find(words), std::string::npos) << report.error().message();
    EXPECT_FALSE(std::filesystem::exists(folder.Path("moved")));
  };
  expect(codes, 300, "\x80", "tensor " + codes + ": element 300 is -128");
  expect(scales, 8, std::string("\x00\x00\xc0\x7f", 4), "tensor " + scales + ": element 2 is nan");
  WriteText(split.scout_path, whole);
  const auto report = convert();
  EXPECT_TRUE(report) << report.error().message();
}

TEST(QuantisedTrunkFile, AnInterruptedRunWithAnotherFormatIsNotTakenOver) {
  const TestFolder folder;
  const std::string out = folder.Path("m.smoe");
  uint64_t steps = 0;
  const int status = InChild([&] {
    CallbackProgress killer([&] {
      if (++steps == 30) ::_exit(7);
    });
    ShatterOptions options;
    options.trunk_formats = TrunkFormats::All(TrunkFormat::kInt8);
    options.threads = 1;
    return Shatter(TinyMoe(), out, options, killer) ? 0 : 1;
  });
  ASSERT_EQ(WEXITSTATUS(status), 7);
  NoProgress progress;
  ShatterOptions options;
  options.resume = true;
  const auto other = Shatter(TinyMoe(), out, options, progress);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("trunk_format"), std::string::npos)
      << other.error().message();
  options.trunk_formats = TrunkFormats::All(TrunkFormat::kInt8);
  ASSERT_TRUE(Shatter(TinyMoe(), out, options, progress));
  MustShatter(folder.Path("fresh.smoe"), TrunkFormat::kInt8, false);
  EXPECT_EQ(ReadText(out), ReadText(folder.Path("fresh.smoe")));
}

}  // namespace
}  // namespace smoe::convert
