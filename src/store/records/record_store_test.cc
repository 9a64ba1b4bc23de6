#include "store/records/record_store.h"

#include <bit>

#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "store/vault/vault_files_for_test.h"

namespace smoe::store::records {
namespace {

using checkpoint::TensorFiles;
using vault::ReadFile;
using vault::ReadJson;
using vault::ReferencePath;
using vault::TempFolder;
using vault::WriteFile;

std::string StorePath(const std::string& name) { return ReferencePath("nvfp4/" + name); }

std::unique_ptr<ExpertStore> Open(const std::string& path, const RecordStoreOptions& options = {}) {
  auto folder = OpenRecordFolder(path);
  EXPECT_TRUE(folder) << folder.error().message();
  if (!folder) return nullptr;
  auto store = OpenRecordStore(std::move(*folder), options);
  EXPECT_TRUE(store) << store.error().message();
  return store ? std::move(*store) : nullptr;
}

// Reads as the cache does, but with plain reads.
Status Fetch(const ExpertStore& store, ExpertId id, MutableBytes slot) {
  const ExpertLocation location = store.Locate(id);
  EXPECT_EQ(location.extent_count, 1u);
  const ExpertExtent& extent = location.extents[0];
  EXPECT_EQ(::pread(extent.fd, slot.data(), extent.size, static_cast<off_t>(extent.offset)),
            static_cast<ssize_t>(extent.size));
  return store.Admit(id, slot);
}

void ExpectEqualsGolden(const tensor::WeightView& view, const TensorFiles& golden,
                        const std::string& name) {
  const checkpoint::TensorInfo* info = golden.Find(name);
  ASSERT_NE(info, nullptr) << name;
  ASSERT_EQ(info->shape, (tensor::Shape{view.rows, view.cols}));
  std::vector<uint32_t> bits(uint64_t{view.rows} * view.cols);
  ASSERT_TRUE(golden.Read(*info, 0, std::as_writable_bytes(std::span(bits))));
  for (uint32_t row = 0; row < view.rows; ++row) {
    for (uint32_t col = 0; col < view.cols; ++col) {
      ASSERT_EQ(std::bit_cast<uint32_t>(tensor::WeightAt(view, row, col)),
                bits[uint64_t{row} * view.cols + col])
          << name << " " << row << " " << col;
    }
  }
}

// Each store of the list, and the golden experts of its model.
TEST(RecordStore, DequantisesEveryReferenceStoreToTheBit) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const Json list = ReadJson(StorePath("nvfp4.json"));
  size_t checked = 0;
  for (const Json& model : *list.Find("models")->AsArray()) {
    const auto golden = TensorFiles::Open(StorePath(*model.Find("expert_tensors")->AsString()));
    ASSERT_TRUE(golden) << golden.error().message();
    for (const Json& item : *model.Find("stores")->AsArray()) {
      const std::string name = *item.Find("dir")->AsString();
      SCOPED_TRACE(name);
      const auto store = Open(StorePath(name));
      ASSERT_NE(store, nullptr);
      AlignedBuffer slot = *AlignedBuffer::Create(store->slot_bytes(), "test");
      for (const StoreLayer& layer : store->layers()) {
        for (uint32_t e = 0; e < layer.expert_count; ++e) {
          const ExpertId id{layer.layer_index, e};
          const std::string stem = fmt::format("L{:02}.E{:03}.", id.layer_index, e);
          const Status status = Fetch(*store, id, slot.bytes());
          ASSERT_TRUE(status) << status.error().message();
          if (golden->Find(stem + "gate") == nullptr) continue;
          const tensor::ExpertWeights weights = store->View(id, slot.bytes());
          ExpectEqualsGolden(weights.gate, *golden, stem + "gate");
          ExpectEqualsGolden(weights.up, *golden, stem + "up");
          ExpectEqualsGolden(weights.down, *golden, stem + "down");
          ++checked;
        }
      }
    }
  }
  EXPECT_GE(checked, 24u);
}

TEST(RecordStore, NamesLayersByTheModelNotByTheFile) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto store = Open(StorePath("a64x128-store"), {.num_hidden_layers = 3});
  ASSERT_NE(store, nullptr);
  // Dense layers 0, 1, 2 are model layers 1, 2, 3; the last is beyond the three hidden layers.
  ASSERT_EQ(store->layers().size(), 2u);
  EXPECT_EQ(store->layers()[0].layer_index, 1u);
  EXPECT_EQ(store->layers()[1].layer_index, 2u);
  EXPECT_EQ(store->layers()[1].first_ordinal, 8u);
  EXPECT_EQ(store->expert_count(), 16u);
  EXPECT_EQ(store->Locate({2, 3}).extents[0].offset, 3u * 16384);
  EXPECT_NE(store->Locate({1, 0}).extents[0].fd, store->Locate({2, 0}).extents[0].fd);
}

TEST(RecordStore, FallsBackToBufferedOnceAndForAll) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto store = Open(StorePath("a64x128-store"));
  ASSERT_NE(store, nullptr);
  if (!store->direct_io()) GTEST_SKIP() << "no direct reads here";
  EXPECT_EQ(store->Locate({1, 0}).read_bytes(), 16384u);
  const int direct_fd = store->Locate({1, 0}).extents[0].fd;
  EXPECT_TRUE(store->FallBackToBuffered());
  EXPECT_FALSE(store->FallBackToBuffered());
  EXPECT_NE(store->Locate({1, 0}).extents[0].fd, direct_fd);
  EXPECT_EQ(store->Locate({1, 0}).read_bytes(), 14080u);
}

TEST(RecordStore, ReadsBufferedWhereTheStrideIsNoWholePage) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  const auto store = Open(StorePath("b16x32-store-sub64-fs512"));
  ASSERT_NE(store, nullptr);
  EXPECT_FALSE(store->direct_io());
  EXPECT_EQ(store->slot_bytes() % kPageBytes, 0u);
}

TEST(OpenRecordFolder, RefusesAnotherGroupSizeAsUnsupported) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  // Half a group: the sizes of so small a record stay what they are.
  const TempFolder folder;
  auto index = ParseManifest(ReadFile(StorePath("b16x32-store/manifest.json")), "m");
  ASSERT_TRUE(index);
  index->group_size = 8;
  WriteFile(folder.File("manifest.json"), ManifestText(*index));
  const auto opened = OpenRecordFolder(folder.File(""));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(opened.error().message().find("group_size is 8"), std::string::npos);
}

// A copy of the small store whose manifest has checksums.
class CheckedStore {
 public:
  CheckedStore() {
    auto index = ParseManifest(ReadFile(StorePath("b16x32-store/manifest.json")), "m");
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const std::string name = ExpertIndex::FileName(layer);
      const std::string content = ReadFile(StorePath("b16x32-store/" + name));
      for (uint64_t e = 0; e < 4; ++e) {
        index->record_checksums.push_back(Checksum(AsBytes(content).subspan(e * 4096, 1792)));
      }
      WriteFile(folder_.File(name), content);
    }
    WriteFile(folder_.File("manifest.json"), ManifestText(*index));
  }
  std::string path() const { return folder_.File("."); }
  void Flip(uint32_t layer, uint64_t offset) {
    const std::string file = folder_.File(ExpertIndex::FileName(layer));
    std::string content = ReadFile(file);
    content[offset] = static_cast<char>(content[offset] ^ 1);
    WriteFile(file, content);
  }

 private:
  TempFolder folder_;
};

TEST(RecordStore, ComparesTheManifestsChecksumAtTheFirstFetch) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  CheckedStore checked;
  checked.Flip(1, 2 * 4096 + 300);  // one code of expert 2
  const auto store = Open(checked.path(), {.direct_io = false});
  ASSERT_NE(store, nullptr);
  AlignedBuffer slot = *AlignedBuffer::Create(store->slot_bytes(), "test");
  EXPECT_TRUE(Fetch(*store, {1, 1}, slot.bytes()));
  const Status status = Fetch(*store, {1, 2}, slot.bytes());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(status.error().message().find(
                "experts_00001.xpr: record 2 (model layer 1, expert 2) at byte 8192: checksum is"),
            std::string::npos)
      << status.error().message();
  // What was refused is not taken for good the next time.
  EXPECT_FALSE(Fetch(*store, {1, 2}, slot.bytes()));
}

TEST(RecordStore, ComparesTheIdentityAtEveryFetch) {
  SMOE_SKIP_WITHOUT_REFERENCE();
  CheckedStore checked;
  const auto store = Open(checked.path(), {.direct_io = false});
  ASSERT_NE(store, nullptr);
  AlignedBuffer slot = *AlignedBuffer::Create(store->slot_bytes(), "test");
  EXPECT_TRUE(Fetch(*store, {1, 1}, slot.bytes()));
  EXPECT_TRUE(Fetch(*store, {1, 1}, slot.bytes()));
  checked.Flip(1, 4096 + 12);  // the expert in the header of expert 1's record
  const Status status = Fetch(*store, {1, 1}, slot.bytes());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(status.error().message().find("expert is 0, expected 1"), std::string::npos)
      << status.error().message();
}

}  // namespace
}  // namespace smoe::store::records
