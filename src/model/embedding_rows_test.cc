#include "model/embedding_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "checkpoint/files_for_test.h"

namespace smoe::model {
namespace {

using tensor::DType;
using tensor::WeightFormat;
using testing::HasSubstr;

constexpr uint32_t kCols = 64;
constexpr uint64_t kOffset = 6;  // at no page's beginning

// Row t holds small integers that bf16 and int8 (largest magnitude 127) keep exactly: t % 100 + 1
// times -1, 0 or 1, and 127 in the last column.
std::vector<float> RowOf(uint32_t token) {
  std::vector<float> row(kCols);
  for (uint32_t col = 0; col < kCols; ++col) {
    row[col] = static_cast<float>(token % 100 + 1) * (static_cast<float>(col % 3) - 1);
  }
  row.back() = 127;
  return row;
}

class EmbeddingRowsTest : public testing::Test {
 protected:
  std::string Write(uint32_t rows) {
    std::vector<float> values;
    for (uint32_t token = 0; token < rows; ++token) {
      const std::vector<float> row = RowOf(token);
      values.insert(values.end(), row.begin(), row.end());
    }
    if (bad_element_) values[*bad_element_] = std::numeric_limits<float>::infinity();
    return folder_.Write("rows", std::string(kOffset, 'x') + checkpoint::BF16Data(values));
  }

  static EmbeddingRows::Place PlaceOf(uint32_t rows, WeightFormat format) {
    return {.name = "embed",
            .offset = kOffset,
            .dtype = DType::kBF16,
            .rows = rows,
            .cols = kCols,
            .format = format};
  }

  void Open(uint32_t rows, WeightFormat format) {
    const auto file = io::File::OpenRead(Write(rows));
    ASSERT_TRUE(file.has_value()) << file.error().message();
    auto opened = EmbeddingRows::Open(*file, PlaceOf(rows, format));
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    embedding_ = std::move(*opened);
  }

  std::vector<float> Read(const std::vector<uint32_t>& tokens) {
    std::vector<StepRow> rows;
    for (const uint32_t token : tokens) rows.push_back({0, token, rows.size()});
    std::vector<float> out(tokens.size() * kCols, -1.0F);
    embedding_->Read(rows, out.data(), [this](size_t row, const Error& error) {
      failures_.push_back(std::to_string(row) + " " + error.message());
    });
    return out;
  }

  checkpoint::TestFolder folder_;
  std::unique_ptr<EmbeddingRows> embedding_;
  std::vector<std::string> failures_;
  std::optional<size_t> bad_element_;
};

std::vector<float> RowsOf(const std::vector<uint32_t>& tokens) {
  std::vector<float> rows;
  for (const uint32_t token : tokens) {
    const std::vector<float> row = RowOf(token);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

TEST_F(EmbeddingRowsTest, HasTheRowsOfTheFile) {
  Open(700, WeightFormat::kBF16);
  EXPECT_EQ(Read({0, 699, 3, 64}), RowsOf({0, 699, 3, 64}));
  EXPECT_TRUE(failures_.empty());
}

TEST_F(EmbeddingRowsTest, HasWhatInt8KeepsOfThem) {
  Open(700, WeightFormat::kInt8);
  EXPECT_EQ(Read({5, 600}), RowsOf({5, 600}));
}

TEST_F(EmbeddingRowsTest, ReadsARowOnceWhileItIsKept) {
  Open(700, WeightFormat::kBF16);
  EXPECT_EQ(Read({7, 7, 8}), RowsOf({7, 7, 8}));
  EXPECT_EQ(embedding_->read_count(), 2u);
  EXPECT_EQ(Read({8, 7}), RowsOf({8, 7}));
  EXPECT_EQ(embedding_->read_count(), 2u);
  // 519 has the place of 7, within one step as well.
  EXPECT_EQ(Read({7, 519, 7}), RowsOf({7, 519, 7}));
  EXPECT_EQ(embedding_->read_count(), 4u);
}

TEST_F(EmbeddingRowsTest, AWeightThatIsNotFiniteFailsItsTokenAlone) {
  bad_element_ = 9 * kCols + 2;
  Open(20, WeightFormat::kInt8);
  std::vector<float> wanted = RowsOf({4, 9, 5});
  std::fill_n(wanted.begin() + kCols, kCols, 0.0F);
  EXPECT_EQ(Read({4, 9, 5}), wanted);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_THAT(failures_[0], HasSubstr("1 "));
  EXPECT_THAT(failures_[0], HasSubstr("rows: tensor embed: element 578 is NaN or infinite"));
  Read({9});  // and is not kept
  EXPECT_EQ(failures_.size(), 2u);
}

TEST_F(EmbeddingRowsTest, AFileThatWasCutFailsTheTokensBehindItsEnd) {
  Open(20, WeightFormat::kBF16);
  std::filesystem::resize_file(folder_.Path("rows"), kOffset + 10 * kCols * 2);
  EXPECT_EQ(Read({9}), RowsOf({9}));
  EXPECT_TRUE(failures_.empty());
  Read({10, 1});
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_THAT(failures_[0], HasSubstr("0 "));
  EXPECT_THAT(failures_[0], HasSubstr("rows"));
  EXPECT_EQ(Read({1}), RowsOf({1}));
}

TEST_F(EmbeddingRowsTest, AFileThatWasReplacedBeforeIsRefusedAndOneReplacedLaterIsNotLookedAt) {
  const auto file = io::File::OpenRead(Write(20));
  ASSERT_TRUE(file.has_value()) << file.error().message();
  Open(20, WeightFormat::kBF16);
  const std::string other = folder_.Write("other", std::string(kOffset + 20 * kCols * 2, '\0'));
  std::filesystem::rename(other, folder_.Path("rows"));
  EXPECT_EQ(Read({3}), RowsOf({3}));
  const auto refused = EmbeddingRows::Open(*file, PlaceOf(20, WeightFormat::kBF16));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message(), HasSubstr("rows: another file has this name now"));
}

// 3.4e38 is a number of f32, and rounds beyond the largest of bf16, 3.3895e38.
TEST_F(EmbeddingRowsTest, AWeightThatTheFormatCannotHoldFailsItsTokenByName) {
  std::vector<float> values(4 * kCols, 1.0F);
  values[2 * kCols + 5] = 3.4e38F;
  const std::string path = folder_.Write("rows", checkpoint::F32Data(values));
  const auto file = io::File::OpenRead(path);
  ASSERT_TRUE(file.has_value()) << file.error().message();
  auto opened = EmbeddingRows::Open(*file, {.name = "embed",
                                            .offset = 0,
                                            .dtype = DType::kF32,
                                            .rows = 4,
                                            .cols = kCols,
                                            .format = WeightFormat::kBF16});
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  embedding_ = std::move(*opened);
  EXPECT_EQ(Read({1, 2})[0], 1.0F);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_THAT(failures_[0], HasSubstr("1 "));
  EXPECT_THAT(failures_[0],
              HasSubstr("rows: tensor embed, counted from element 128: element 5 is"));
}

}  // namespace
}  // namespace smoe::model
