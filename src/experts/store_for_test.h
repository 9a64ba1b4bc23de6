// experts/store_for_test.h: a store of seeded random experts in a temporary file, for tests only.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "store/expert_store.h"
#include "tensor/dtype.h"

namespace smoe::experts {

struct TestStoreOptions {
  uint64_t seed = 1;
  std::vector<std::pair<uint32_t, uint32_t>> layers = {{0, 8}};  // layer, experts
  uint32_t hidden_size = 8;
  uint32_t intermediate_size = 8;
  tensor::WeightFormat format = tensor::WeightFormat::kF32;
  uint32_t group_size = 64;
  uint32_t extent_count = 1;  // 1: one read; 3: one for each matrix
  // Reads through a second descriptor until FallBackToBuffered. The descriptor is a plain one: the
  // fake queue refuses what it is told to.
  bool direct_io = false;
};

// The expert of ordinal n lies at n * slot_bytes(): gate, up, down, each codes then scales.
class TestStore final : public store::ExpertStore {
 public:
  explicit TestStore(const TestStoreOptions& options)
      : options_(options), direct_(options.direct_io) {
    for (const auto& [layer, count] : options.layers) {
      layers_.push_back({layer, count, expert_count_});
      expert_count_ += count;
    }
    matrix_offsets_[0] = 0;
    for (size_t i = 0; i < 3; ++i) matrix_offsets_[i + 1] = matrix_offsets_[i] + MatrixBytes(i);
    slot_bytes_ = RoundUp(matrix_offsets_[3], kPageBytes);
    content_.resize(slot_bytes_ * expert_count_);
    std::mt19937_64 random(options.seed);
    for (uint32_t ordinal = 0; ordinal < expert_count_; ++ordinal) {
      for (size_t i = 0; i < 3; ++i) Fill(random, Matrix(ordinal, i), MutableContent(ordinal, i));
    }
    WriteFile();
  }
  ~TestStore() override {
    close(fd_);
    close(direct_fd_);
    unlink(path_.c_str());
  }

  const std::string& path() const override { return path_; }
  const char* format_name() const override { return "test"; }
  std::span<const store::StoreLayer> layers() const override { return layers_; }
  uint32_t expert_count() const override { return expert_count_; }
  uint32_t hidden_size() const override { return options_.hidden_size; }
  uint32_t intermediate_size() const override { return options_.intermediate_size; }
  uint64_t slot_bytes() const override { return slot_bytes_; }
  bool direct_io() const override { return direct_; }
  bool FallBackToBuffered() override {
    ++fallback_count_;
    return std::exchange(direct_, false);
  }

  store::ExpertLocation Locate(store::ExpertId id) const override {
    const uint64_t start = *FindOrdinal(*this, id) * slot_bytes_;
    store::ExpertLocation location;
    location.extent_count = options_.extent_count;
    for (uint32_t i = 0; i < options_.extent_count; ++i) {
      const uint64_t begin = options_.extent_count == 1 ? 0 : matrix_offsets_[i];
      const uint64_t end = options_.extent_count == 1 ? matrix_offsets_[3] : matrix_offsets_[i + 1];
      location.extents[i] = {direct_ ? direct_fd_ : fd_, start + begin, end - begin, begin};
    }
    return location;
  }

  Status Admit(store::ExpertId id, MutableBytes slot) const override {
    const Bytes expected = Content(id);
    if (Checksum(slot.subspan(0, expected.size())) == Checksum(expected)) return Ok();
    return Corrupt("{}: layer {}, expert {}: checksum differs", path_, id.layer_index,
                   id.expert_index);
  }

  tensor::ExpertWeights View(store::ExpertId, Bytes slot) const override {
    return {.gate = ViewMatrix(0, slot), .up = ViewMatrix(1, slot), .down = ViewMatrix(2, slot)};
  }

  // The bytes of an expert as they were written.
  Bytes Content(store::ExpertId id) const {
    return Bytes(content_).subspan(*FindOrdinal(*this, id) * slot_bytes_, matrix_offsets_[3]);
  }
  tensor::ExpertWeights Weights(store::ExpertId id) const { return View(id, Content(id)); }

  store::ExpertId IdOf(uint32_t ordinal) const {
    for (const store::StoreLayer& layer : layers_) {
      if (ordinal < layer.first_ordinal + layer.expert_count) {
        return {layer.layer_index, ordinal - layer.first_ordinal};
      }
    }
    ADD_FAILURE() << "no expert has ordinal " << ordinal;
    return {};
  }
  // After a test has cut the file short.
  void RestoreFile() const {
    EXPECT_EQ(pwrite(fd_, content_.data(), content_.size(), 0),
              static_cast<ssize_t>(content_.size()));
  }
  int direct_fd() const { return direct_fd_; }
  int fallback_count() const { return fallback_count_; }
  void ReturnToDirect() { direct_ = options_.direct_io; }

 private:
  uint32_t Rows(size_t matrix) const {
    return matrix == 2 ? options_.hidden_size : options_.intermediate_size;
  }
  uint32_t Cols(size_t matrix) const {
    return matrix == 2 ? options_.intermediate_size : options_.hidden_size;
  }
  uint64_t WeightCount(size_t matrix) const { return uint64_t{Rows(matrix)} * Cols(matrix); }
  uint64_t DataBytes(size_t matrix) const {
    switch (options_.format) {
      case tensor::WeightFormat::kF32:
        return WeightCount(matrix) * 4;
      case tensor::WeightFormat::kF16:
      case tensor::WeightFormat::kBF16:
        return WeightCount(matrix) * 2;
      case tensor::WeightFormat::kSmoeQ4:
        return CeilDiv(WeightCount(matrix), 2);
      case tensor::WeightFormat::kSmoeQ2:
        return CeilDiv(WeightCount(matrix), 4);
      case tensor::WeightFormat::kNvfp4:
        return WeightCount(matrix) / 2;
      case tensor::WeightFormat::kInt8:
        return *tensor::Int8CodeBytes(Rows(matrix), Cols(matrix));
    }
    return 0;
  }
  uint64_t ScaleBytes(size_t matrix) const {
    if (!tensor::IsQuantised(options_.format)) return 0;
    if (options_.format == tensor::WeightFormat::kNvfp4) {
      return WeightCount(matrix) / tensor::kNvfp4Group;
    }
    if (options_.format == tensor::WeightFormat::kInt8) {
      return *tensor::Int8ScaleBytes(Rows(matrix), Cols(matrix));
    }
    return 2 * CeilDiv(WeightCount(matrix), options_.group_size);
  }
  uint64_t MatrixBytes(size_t matrix) const { return DataBytes(matrix) + ScaleBytes(matrix); }

  tensor::WeightView ViewMatrix(size_t matrix, Bytes slot) const {
    return {.format = options_.format,
            .rows = Rows(matrix),
            .cols = Cols(matrix),
            .data = slot.subspan(matrix_offsets_[matrix], DataBytes(matrix)),
            .scales = slot.subspan(matrix_offsets_[matrix] + DataBytes(matrix), ScaleBytes(matrix)),
            .group_size = tensor::IsQuantised(options_.format) ? options_.group_size : 0};
  }
  tensor::WeightView Matrix(uint32_t ordinal, size_t matrix) const {
    return ViewMatrix(matrix, Bytes(content_).subspan(ordinal * slot_bytes_, slot_bytes_));
  }
  MutableBytes MutableContent(uint32_t ordinal, size_t matrix) {
    return MutableBytes(content_).subspan(ordinal * slot_bytes_ + matrix_offsets_[matrix],
                                          MatrixBytes(matrix));
  }

  // Small weights, so that results stay finite; any codes.
  static void Fill(std::mt19937_64& random, const tensor::WeightView& view, MutableBytes into) {
    const auto value = [&random] { return static_cast<float>(random() % 2001) / 1000.0f - 1.0f; };
    for (uint64_t i = 0; i < view.data.size(); ++i) into[i] = static_cast<std::byte>(random());
    if (view.format == tensor::WeightFormat::kF32) {
      for (uint64_t i = 0; i + 4 <= into.size(); i += 4) StoreStruct(into, i, value());
    } else if (view.format == tensor::WeightFormat::kF16) {
      for (uint64_t i = 0; i + 2 <= into.size(); i += 2) {
        StoreStruct(into, i, tensor::F16FromF32(value()));
      }
    } else if (view.format == tensor::WeightFormat::kBF16) {
      for (uint64_t i = 0; i + 2 <= into.size(); i += 2) {
        StoreStruct(into, i, tensor::BF16FromF32(value()));
      }
    }
    for (uint64_t i = view.data.size(); i + 2 <= into.size(); i += 2) {
      if (view.format == tensor::WeightFormat::kNvfp4) {
        StoreStruct(into, i, static_cast<uint16_t>(0x1820 + random() % 16));  // 2^-4 and about 2^-3
        continue;
      }
      StoreStruct(into, i, tensor::F16FromF32(0.2f + 0.1f * value()));
    }
  }

  void WriteFile() {
    path_ = (std::filesystem::temp_directory_path() / "smoe_experts_XXXXXX").string();
    fd_ = mkostemp(path_.data(), O_CLOEXEC);
    direct_fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    RestoreFile();
  }

  TestStoreOptions options_;
  bool direct_;
  std::vector<store::StoreLayer> layers_;
  uint32_t expert_count_ = 0;
  uint64_t matrix_offsets_[4] = {};
  uint64_t slot_bytes_ = 0;
  std::vector<std::byte> content_;
  std::string path_;
  int fd_ = -1;
  int direct_fd_ = -1;
  int fallback_count_ = 0;
};

}  // namespace smoe::experts
