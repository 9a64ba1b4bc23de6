#include "store/records/record.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/safetensors.h"
#include "store/vault/vault_files_for_test.h"

namespace smoe::store::records {
namespace {

using checkpoint::TensorFiles;
using vault::ReadFile;
using vault::ReadJson;
using vault::ReferencePath;

std::string HexText(Bytes bytes) {
  std::string text;
  for (const std::byte value : bytes)
    text += fmt::format("{:02x}", std::to_integer<uint32_t>(value));
  return text;
}

// An expert of zeros with its own memory.
struct Expert {
  explicit Expert(const ExpertRecordSpec& spec) {
    for (size_t i = 0; i < kProjCount; ++i) {
      packed[i].resize(spec.projs[i].bytes.packed);
      scale[i].resize(spec.projs[i].bytes.scale);
      parts.projs[i] = {packed[i], scale[i], 1, std::nullopt};
    }
  }
  std::vector<std::byte> packed[kProjCount];
  std::vector<std::byte> scale[kProjCount];
  ExpertParts parts;
};

ExpertRecordSpec Spec(uint32_t inter, uint32_t hidden) {
  return *ExpertRecordSpec::Create(inter, hidden, kNvfp4GroupSize, kSubAlignUsual);
}

TEST(PackRecord, WritesTheGoldenHeader) {
  const ExpertRecordSpec spec = Spec(512, 2048);
  Expert expert(spec);
  expert.parts.projs[0].scale2 = 0.5f;
  expert.parts.projs[1].scale2 = 0.25f;
  expert.parts.projs[2].scale2 = 1.5f;
  expert.parts.projs[0].input_scale = 2.0f;
  expert.parts.projs[2].input_scale = 3.0f;
  std::vector<std::byte> record(1773568, std::byte{0xAA});
  ASSERT_TRUE(PackRecord(spec, {7, 42}, expert.parts, PartsOrder::kRecord, record));
  EXPECT_EQ(HexText(Bytes(record).first(kHeaderBytesUsed)),
            "5452505801000000070000002a000000000200000008000010000000050000000000003f0000803e"
            "0000c03f000000400000000000004040");
  EXPECT_TRUE(AllZero(Bytes(record).subspan(kHeaderBytesUsed)));
}

TEST(PackRecord, MakesTheReferenceStoreFromTheCheckpointBesideIt) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto files = TensorFiles::Open(ReferencePath("nvfp4/a64x128-modelopt"));
  ASSERT_TRUE(files) << files.error().message();
  const auto read = [&](const std::string& name) {
    const checkpoint::TensorInfo* info = files->Find(name);
    EXPECT_NE(info, nullptr) << name;
    std::vector<std::byte> bytes(info == nullptr ? 0 : info->size);
    EXPECT_TRUE(info != nullptr && files->Read(*info, 0, bytes));
    return bytes;
  };
  const ExpertRecordSpec spec = Spec(64, 128);
  const std::string stored = ReadFile(ReferencePath("nvfp4/a64x128-store/experts_00001.xpr"));
  for (uint32_t e = 0; e < 8; ++e) {
    Expert expert(spec);
    for (const Proj proj : kProjs) {
      const size_t i = ProjIndex(proj);
      const std::string stem =
          fmt::format("model.layers.2.mlp.experts.{}.{}_proj.", e, ProjName(proj));
      expert.packed[i] = read(stem + "weight");
      expert.scale[i] = read(stem + "weight_scale");
      expert.parts.projs[i] = {expert.packed[i], expert.scale[i],
                               LoadStruct<float>(read(stem + "weight_scale_2")),
                               LoadStruct<float>(read(stem + "input_scale"))};
    }
    std::vector<std::byte> record(16384, std::byte{0xAA});
    ASSERT_TRUE(PackRecord(spec, {1, e}, expert.parts, PartsOrder::kCheckpoint, record));
    EXPECT_TRUE(std::ranges::equal(record, AsBytes(stored).subspan(e * 16384, 16384))) << e;
  }
}

TEST(UnpackRecord, GivesBackWhatWasPacked) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const std::string stored =
      ReadFile(ReferencePath("nvfp4/b16x32-store-part-input/experts_00001.xpr"));
  const ExpertRecordSpec spec = Spec(16, 32);
  const Bytes original = AsBytes(stored).subspan(2 * 4096, 4096);
  const auto parts = UnpackRecord(spec, {1, 2}, original);
  ASSERT_TRUE(parts) << parts.error().message();
  EXPECT_TRUE(parts->projs[0].input_scale.has_value());
  EXPECT_FALSE(parts->projs[1].input_scale.has_value());
  EXPECT_TRUE(parts->projs[2].input_scale.has_value());
  std::vector<std::byte> again(4096, std::byte{0xAA});
  ASSERT_TRUE(PackRecord(spec, {1, 2}, *parts, PartsOrder::kRecord, again));
  EXPECT_TRUE(std::ranges::equal(again, original));
  const auto other = UnpackRecord(spec, {0, 2}, original);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().message(), "header field layer is 1, expected 0");
}

TEST(PackRecord, RefusesNumbersThatNoReaderTakes) {
  const ExpertRecordSpec spec = Spec(16, 32);
  std::vector<std::byte> record(spec.raw_bytes);
  const auto refusal = [&](const Expert& expert) {
    const Status status = PackRecord(spec, {0, 0}, expert.parts, PartsOrder::kCheckpoint, record);
    return status ? std::string() : status.error().message();
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0f, -1.0f, kInfinity, std::nanf("")}) {
    Expert expert(spec);
    expert.parts.projs[1].scale2 = bad;
    EXPECT_EQ(refusal(expert),
              fmt::format("up: header field scale2 is {}, expected a finite number above 0", bad));
    Expert other(spec);
    other.parts.projs[0].input_scale = bad;
    EXPECT_EQ(
        refusal(other),
        fmt::format("gate: header field input_scale is {}, expected a finite number above 0", bad));
  }
  // down is [32][16]: one group per row, so code 5 is row 5.
  Expert expert(spec);
  expert.scale[2][5] = std::byte{0x7F};
  EXPECT_EQ(refusal(expert),
            "down: block scale 5 (row 5, group 0) at byte 1541 of the record is 0x7f, NaN; "
            "expected 0x00 to 0x7e");
  // gate is [16][32], two groups per row: checkpoint code 3 is row 1, group 1, the 17th of [2][16].
  Expert other(spec);
  other.scale[0][3] = std::byte{0x81};
  EXPECT_EQ(refusal(other),
            "gate: block scale 17 (row 1, group 1) at byte 529 of the record is 0x81, negative; "
            "expected 0x00 to 0x7e");
}

TEST(FindBadScaleCode, FindsTheFirstAtEveryPlaceAndForEveryCode) {
  for (size_t size : {0u, 1u, 7u, 8u, 9u, 24u, 31u}) {
    for (size_t place = 0; place < size; ++place) {
      for (uint32_t code = 0; code < 256; ++code) {
        std::vector<std::byte> scale(size, std::byte{0x7E});
        scale[place] = static_cast<std::byte>(code);
        EXPECT_EQ(FindBadScaleCode(scale), code < 0x7F ? size : place);
      }
    }
  }
}

TEST(TransposeBytes, PutsEveryByteInItsPlace) {
  for (const auto& [rows, cols] :
       {std::pair{1u, 5u}, std::pair{3u, 2u}, std::pair{64u, 64u}, std::pair{65u, 130u}}) {
    std::vector<std::byte> from(rows * cols), to(rows * cols);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
    TransposeBytes(from, rows, cols, to);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < cols; ++c) ASSERT_EQ(to[c * rows + r], from[r * cols + c]);
    }
  }
}

TEST(PaddingIsZero, LooksBetweenAllBuffersAndBehindThem) {
  const ExpertRecordSpec spec = Spec(16, 32);
  std::vector<std::byte> record(4096);
  ASSERT_TRUE(PackRecord(spec, {0, 0}, Expert(spec).parts, PartsOrder::kRecord, record));
  EXPECT_TRUE(PaddingIsZero(spec, record));
  size_t padding = 0;
  for (size_t i = kHeaderBytes; i < record.size(); ++i) {
    record[i] = std::byte{1};
    if (!PaddingIsZero(spec, record)) ++padding;
    record[i] = std::byte{0};
  }
  EXPECT_EQ(padding, 4096u - 256 - 864);  // all but header and payload
}

}  // namespace
}  // namespace smoe::store::records
