#include "store/records/format.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace smoe::store::records {
namespace {

ExpertRecordSpec Spec(uint32_t inter, uint32_t hidden, uint32_t sub_align = kSubAlignUsual) {
  const auto spec = ExpertRecordSpec::Create(inter, hidden, kNvfp4GroupSize, sub_align);
  EXPECT_TRUE(spec) << spec.error().message();
  return spec ? *spec : ExpertRecordSpec();
}

TEST(ExpertRecordHeader, HasItsFieldsWhereTheFormatPutsThem) {
  EXPECT_EQ(offsetof(ExpertRecordHeader, layer), 8u);
  EXPECT_EQ(offsetof(ExpertRecordHeader, input_scale_flags), 28u);
  EXPECT_EQ(offsetof(ExpertRecordHeader, scale2), 32u);
  EXPECT_EQ(offsetof(ExpertRecordHeader, input_scale), 44u);
  EXPECT_EQ(offsetof(ExpertRecordHeader, reserved), kHeaderBytesUsed);
}

// The table of the format's document.
TEST(ExpertRecordSpec, HasTheOffsetsAndSizesOfTheFormat) {
  struct Row {
    uint32_t inter, hidden;
    uint64_t offsets[6];
    uint64_t raw, stride, payload;
  };
  for (const Row& row :
       {Row{512, 2048, {256, 524544, 590080, 1114368, 1179904, 1704192}, 1769728, 1773568, 1769472},
        Row{1024,
            4096,
            {256, 2097408, 2359552, 4456704, 4718848, 6816000},
            7078144,
            7081984,
            7077888},
        Row{64, 128, {256, 4352, 4864, 8960, 9472, 13568}, 14080, 16384, 13824},
        Row{16, 32, {256, 512, 768, 1024, 1280, 1536}, 1792, 4096, 864}}) {
    SCOPED_TRACE(row.inter);
    const ExpertRecordSpec spec = Spec(row.inter, row.hidden);
    for (const Proj proj : kProjs) {
      EXPECT_EQ(spec.Place(proj).packed_offset, row.offsets[2 * ProjIndex(proj)]);
      EXPECT_EQ(spec.Place(proj).scale_offset, row.offsets[2 * ProjIndex(proj) + 1]);
    }
    EXPECT_EQ(spec.raw_bytes, row.raw);
    EXPECT_EQ(RoundUp(spec.raw_bytes, kFsBlockSizeUsual), row.stride);
    EXPECT_EQ(spec.payload_bytes(), row.payload);
  }
}

TEST(ExpertRecordSpec, KeepsTheOrderTheAlignmentAndTheGapsForEveryShape) {
  for (const uint32_t sub_align : {1u, 64u, 256u, 4096u, kSubAlignMax}) {
    for (const uint32_t inter : {16u, 48u, 80u, 1408u}) {
      for (const uint32_t hidden : {16u, 112u, 2048u}) {
        const ExpertRecordSpec spec = Spec(inter, hidden, sub_align);
        uint64_t cursor = kHeaderBytes;
        for (const Proj proj : kProjs) {
          const ProjPlace& place = spec.Place(proj);
          EXPECT_EQ(place.n, proj == Proj::kDown ? hidden : inter);
          EXPECT_EQ(place.k, proj == Proj::kDown ? inter : hidden);
          EXPECT_EQ(place.bytes.packed, uint64_t{inter} * hidden / 2);
          EXPECT_EQ(place.bytes.scale, uint64_t{inter} * hidden / 16);
          EXPECT_GE(place.packed_offset, cursor);
          EXPECT_GE(place.scale_offset, place.packed_offset + place.bytes.packed);
          EXPECT_EQ(place.packed_offset % sub_align, 0u);
          EXPECT_EQ(place.scale_offset % sub_align, 0u);
          cursor = place.scale_offset + place.bytes.scale;
        }
        EXPECT_GE(spec.raw_bytes, cursor);
        EXPECT_EQ(spec.raw_bytes % sub_align, 0u);
      }
    }
  }
}

TEST(ExpertRecordSpec, RefusesDimensionsThatMakeNoRecord) {
  struct Case {
    uint32_t inter, hidden, group_size, sub_align;
    const char* message;
  };
  for (const Case& bad :
       {Case{0, 32, 16, 256, "inter is 0, expected a multiple of group_size 16"},
        Case{17, 32, 16, 256, "inter is 17, expected a multiple of group_size 16"},
        Case{16, 40, 16, 256, "hidden is 40, expected a multiple of group_size 16"},
        Case{16, 32, 0, 256, "group_size is 0, expected an even number from 2 to 1024"},
        Case{16, 32, 1, 256, "group_size is 1,"}, Case{30, 30, 15, 256, "group_size is 15,"},
        Case{16, 32, 2048, 256, "group_size is 2048,"},
        Case{16, 32, 16, 0, "sub_align is 0, expected a power of two up to 1048576"},
        Case{16, 32, 16, 96, "sub_align is 96,"},
        Case{16, 32, 16, 1u << 21, "sub_align is 2097152,"},
        Case{1u << 20, 1u << 20, 16, 256, "a record is larger than 1073741824 bytes"},
        Case{0xFFFFFFF0, 0xFFFFFFF0, 16, 256, "a record is larger than 1073741824 bytes"},
        Case{1u << 15, 1u << 15, 16, 256, "a record has 1811939584 bytes"}}) {
    const auto spec =
        ExpertRecordSpec::Create(bad.inter, bad.hidden, bad.group_size, bad.sub_align);
    ASSERT_FALSE(spec) << bad.message;
    EXPECT_EQ(spec.error().code(), ErrorCode::kInvalid);
    EXPECT_NE(spec.error().message().find(bad.message), std::string::npos)
        << spec.error().message();
  }
}

TEST(ExpertRecordId, IsLayerTimesExpertsPlusExpert) {
  EXPECT_EQ(ExpertRecordId::Of({7, 42}, 512).value, 7u * 512 + 42);
  EXPECT_EQ((ExpertRecordId{7 * 512 + 42}.Key(512)), (ExpertKey{7, 42}));
}

TEST(ExpertLayout, LaysRecordsBackToBackAtOneStride) {
  const ExpertLayout layout{2, 4, 4096};
  EXPECT_EQ(layout.RecordOffset(3), 12288u);
  EXPECT_EQ(layout.FileBytes(), 16384u);
}

}  // namespace
}  // namespace smoe::store::records
