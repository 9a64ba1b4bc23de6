#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "base/json.h"
#include "checkpoint/files_for_test.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/safetensors_writer.h"
#include "io/aliased_buffer_for_test.h"

namespace smoe::checkpoint {
namespace {

using tensor::DType;
using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::string MessageOf(const std::string& path) {
  const auto files = TensorFiles::Open(path);
  return files ? "opened" : files.error().message();
}

// The message for a file with this header and so many bytes of data.
std::string MessageFor(const std::string& header, size_t data_bytes) {
  const TestFolder folder;
  const std::string path =
      folder.Write("x.safetensors", RawSafetensors(header, std::string(data_bytes, 'x')));
  std::string message = MessageOf(path);
  EXPECT_TRUE(message == "opened" || message.find(path) != std::string::npos) << message;
  return message;
}

std::string Entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

// One JSON object of these members.
std::string Header(const std::vector<std::string>& members) {
  return fmt::format("{{{}}}", fmt::join(members, ","));
}

template <class T>
T ReadScalar(const TensorFiles& files, const std::string& name, uint64_t index) {
  std::array<std::byte, sizeof(T)> bytes = {};
  const auto status = files.Read(*files.Find(name), index * sizeof(T), bytes);
  EXPECT_TRUE(status) << status.error().message();
  return LoadStruct<T>(Bytes(bytes));
}

TEST(A01, SaysWhatAFileSeemsToBeThatIsNoSafetensors) {
  const TestFolder folder;
  const auto message = [&](const std::string& content) {
    const std::string path = folder.Write("model-00001-of-00002.safetensors", content);
    const auto files = TensorFiles::Open(path);
    EXPECT_FALSE(files);
    EXPECT_EQ(files.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(files.error().message(), HasSubstr(path));
    return files.error().message();
  };
  EXPECT_THAT(message("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
              HasSubstr("Git LFS pointer: the real weights were not downloaded"));
  EXPECT_THAT(message("PK\3\4" + std::string(100, 'x')), HasSubstr("zip archive"));
  EXPECT_THAT(message("\x80\x02}q" + std::string(100, 'x')), HasSubstr("pickle"));
  EXPECT_THAT(message("GGUF\3" + std::string(100, '\0')), HasSubstr("GGUF"));
  EXPECT_THAT(message("<!DOCTYPE html><html>not found</html>"), HasSubstr("HTML"));
  EXPECT_THAT(message(""), HasSubstr("empty"));
  EXPECT_THAT(message("abc"), HasSubstr("3 bytes"));
  EXPECT_THAT(message(std::string(100, '\0')), HasSubstr("zeros"));
}

TEST(A01, ReadsAHeaderOf126MB) {
  const TestFolder folder;
  std::string header = Header({Entry("a", "[1]", "[0,4]")});
  header.resize(126 * kMiB, ' ');
  const std::string path = folder.Write("x.safetensors", RawSafetensors(header, "abcd"));
  EXPECT_EQ(MessageOf(path), "opened");
}

TEST(A01, RefusesAHeaderBeyondTheCapNamingIt) {
  const TestFolder folder;
  std::string start = RawSafetensors("{}", "");
  StoreStruct(std::as_writable_bytes(std::span(start)), 0, kSafetensorsHeaderBytesMax + 1);
  const std::string path = folder.Write("x.safetensors", start);
  std::filesystem::resize_file(path, kSafetensorsHeaderBytesMax + 1000);  // sparse
  EXPECT_THAT(MessageOf(path), HasSubstr("at most 268435456 (kSafetensorsHeaderBytesMax)"));
}

TEST(A01, ChecksTheLengthAgainstTheFileBeforeItAllocates) {
  const TestFolder folder;
  std::string start = RawSafetensors("{}", "");
  StoreStruct(std::as_writable_bytes(std::span(start)), 0, uint64_t{1000});
  EXPECT_THAT(MessageOf(folder.Write("x.safetensors", start)),
              HasSubstr("header of 1000 bytes, the file has 2 after its length"));
}

TEST(A02, RefusesADuplicateTensorName) {
  const std::string header = Header({Entry("a", "[1]", "[0,4]"), Entry("a", "[1]", "[4,8]")});
  EXPECT_THAT(MessageFor(header, 8), HasSubstr("duplicate tensor name a"));
}

TEST(A02, FindsADuplicateWrittenWithAnEscape) {
  const std::string header = Header({Entry("a", "[1]", "[0,4]"), Entry("\\u0061", "[1]", "[4,8]")});
  EXPECT_THAT(MessageFor(header, 8), HasSubstr("duplicate tensor name a"));
}

TEST(A02, TakesMetadataThatIsEmptyAbsentOrNull) {
  const std::string entry = Entry("a", "[1]", "[0,4]");
  EXPECT_EQ(MessageFor(Header({R"("__metadata__":{})", entry}), 4), "opened");
  EXPECT_EQ(MessageFor(Header({entry}), 4), "opened");
  EXPECT_EQ(MessageFor(Header({R"("__metadata__":null)", entry}), 4), "opened");
  EXPECT_EQ(MessageFor(Header({entry, R"("__metadata__":{"format":"pt"})"}), 4), "opened");
}

TEST(A02, RefusesMetadataThatIsNoObjectOfStrings) {
  for (const char* value : {"7", R"("pt")", "[]", R"({"a":{}})", R"({"a":1})", "true"}) {
    const std::string header = Header({fmt::format(R"("__metadata__":{})", value)});
    EXPECT_THAT(MessageFor(header, 0), HasSubstr("__metadata__")) << value;
  }
}

TEST(A03, RefusesRangesThatContradictTheShape) {
  const auto message = [](const std::string& shape, const std::string& offsets) {
    std::string text = MessageFor(Header({Entry("t", shape, offsets)}), 8);
    EXPECT_THAT(text, HasSubstr("tensor t"));
    return text;
  };
  EXPECT_THAT(message("[1000,1000]", "[0,4]"), HasSubstr("needs 4000000 bytes"));
  EXPECT_THAT(message("[1]", "[8,4]"), HasSubstr("reversed"));
  EXPECT_THAT(message("[4]", "[0,16]"), HasSubstr("ends at byte 16, the file holds 8"));
  EXPECT_THAT(message("[8589934592,8589934592]", "[0,8]"), HasSubstr("more than 2^64"));
  EXPECT_THAT(message("[4611686018427387904]", "[0,8]"), HasSubstr("more than 2^64"));
  EXPECT_THAT(message("[2]", "[-8,0]"), HasSubstr("non-negative integers"));
  EXPECT_THAT(message("[2]", "[0.5,8]"), HasSubstr("non-negative integers"));
  EXPECT_THAT(message("[2]", "[0,8.0]"), HasSubstr("non-negative integers"));
  EXPECT_THAT(message("[2]", "[0]"), HasSubstr("two numbers"));
  EXPECT_THAT(message("[2]", "[0,4,8]"), HasSubstr("more than 2 numbers"));
  EXPECT_THAT(message("[2]", "[0,18446744073709551616]"), HasSubstr("non-negative integers"));
  EXPECT_THAT(message("[-2]", "[0,8]"), HasSubstr("non-negative integers"));
  EXPECT_THAT(message("\"2\"", "[0,8]"), HasSubstr("shape"));
}

TEST(A03, RefusesOverlapsGapsAndLeftovers) {
  EXPECT_THAT(MessageFor(Header({Entry("a", "[2]", "[0,8]"), Entry("b", "[2]", "[4,12]")}), 12),
              HasSubstr("tensor b: data [4, 12) overlaps that of a"));
  EXPECT_THAT(MessageFor(Header({Entry("a", "[1]", "[0,4]"), Entry("b", "[1]", "[8,12]")}), 12),
              HasSubstr("tensor b: data begins at 8, the tensor before ends at 4: a gap"));
  EXPECT_THAT(MessageFor(Header({Entry("a", "[1]", "[4,8]")}), 8), HasSubstr("a gap"));
  EXPECT_THAT(MessageFor(Header({Entry("a", "[1]", "[0,4]")}), 8), HasSubstr("left over"));
}

TEST(A03, RefusesEntriesThatAreIncompleteOrStrange) {
  EXPECT_THAT(MessageFor(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("dtype"));
  EXPECT_THAT(MessageFor(R"({"t":{"dtype":"F32","data_offsets":[0,4]}})", 4), HasSubstr("shape"));
  EXPECT_THAT(MessageFor(R"({"t":{"dtype":"F32","shape":[1]}})", 4), HasSubstr("data_offsets"));
  EXPECT_THAT(MessageFor(R"({"t":7})", 4), HasSubstr("tensor t"));
  EXPECT_THAT(MessageFor(R"({"t":{"dtype":"F32","dtype":"F32","shape":[1]}})", 4),
              HasSubstr("duplicate key dtype"));
  EXPECT_THAT(MessageFor(Header({Entry("t", "[1]", "[0,4]", "Q9")}), 4), HasSubstr("dtype Q9"));
  EXPECT_THAT(MessageFor(Header({Entry("t", "[1]", "[0,4]")}).append(" {}"), 4),
              HasSubstr("header"));
  EXPECT_THAT(MessageFor(Header({Entry("t", "[1]", "[0,4]")}).substr(1), 4), HasSubstr("header"));
}

TEST(SafetensorsHeader, TakesRankAtTheLimitAndRefusesOneMore) {
  const auto shape = [](size_t rank) {
    std::string text = "[1";
    for (size_t i = 1; i < rank; ++i) text += ",1";
    return text + "]";
  };
  EXPECT_EQ(MessageFor(Header({Entry("t", shape(kTensorRankMax), "[0,4]")}), 4), "opened");
  EXPECT_THAT(MessageFor(Header({Entry("t", shape(kTensorRankMax + 1), "[0,4]")}), 4),
              HasSubstr("more than 32 numbers"));
}

TEST(A04, ReadsTheSameValuesFromAnyAlignment) {
  const TestFolder folder;
  const std::string data = "abc" + BF16Data({1.5F, -2.0F}) + F32Data({3.25F, -4.5F});
  const std::string table =
      Header({Entry("u", "[3]", "[0,3]", "U8"), Entry("h", "[2]", "[3,7]", "BF16"),
              Entry("f", "[2]", "[7,15]")});
  for (size_t padding = 0; padding < 8; ++padding) {
    const std::string header = table + std::string(padding, ' ');
    const auto files =
        TensorFiles::Open(folder.Write("x.safetensors", RawSafetensors(header, data)));
    ASSERT_TRUE(files) << files.error().message();
    EXPECT_EQ(ReadScalar<uint8_t>(*files, "u", 2), 'c');
    EXPECT_EQ(tensor::F32FromBF16(ReadScalar<uint16_t>(*files, "h", 1)), -2.0F);
    EXPECT_EQ(ReadScalar<float>(*files, "f", 0), 3.25F);
    EXPECT_EQ(ReadScalar<float>(*files, "f", 1), -4.5F);
  }
}

// A toy of three shards with tensors a, b, c.
void WriteShards(const TestFolder& folder) {
  const char* names[] = {"a", "b", "c"};
  for (int i = 0; i < 3; ++i) {
    folder.Write(fmt::format("model-0000{}-of-00003.safetensors", i + 1),
                 MakeSafetensors({{names[i], DType::kF32, {1}, F32Data({1.0F})}}));
  }
  folder.Write("model.safetensors.index.json",
               R"({"metadata": {}, "weight_map": {
                 "a": "model-00001-of-00003.safetensors",
                 "b": "model-00002-of-00003.safetensors",
                 "c": "model-00003-of-00003.safetensors"}})");
}

TEST(A05, OpensTheShardsOfAnIndexAndNoStrayFile) {
  const TestFolder folder;
  WriteShards(folder);
  folder.Write("consolidated.safetensors",
               MakeSafetensors({{"a", DType::kBF16, {2}, BF16Data({1.0F, 2.0F})}}));
  const auto files = TensorFiles::Open(folder.path());
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->files().size(), 3U);
  EXPECT_EQ(files->tensors().size(), 3U);
  EXPECT_EQ(files->Find("a")->dtype, DType::kF32);
}

TEST(A05, NamesTheMissingShards) {
  const TestFolder folder;
  WriteShards(folder);
  std::filesystem::remove(folder.Path("model-00002-of-00003.safetensors"));
  const std::string message = MessageOf(folder.path());
  EXPECT_THAT(message, HasSubstr("model-00002-of-00003.safetensors"));
  EXPECT_THAT(message, HasSubstr("1 of the 3 shards"));
  EXPECT_THAT(message, HasSubstr("incomplete download"));
}

TEST(A05, SaysThatAnIndexIsStale) {
  const TestFolder folder;
  WriteShards(folder);
  folder.Write("model.safetensors.index.json",
               R"({"weight_map": {"a": "model-00001-of-00005.safetensors",
                                  "b": "model-00002-of-00005.safetensors"}})");
  const std::string message = MessageOf(folder.path());
  EXPECT_THAT(message, HasSubstr("model-00002-of-00005.safetensors"));
  EXPECT_THAT(message, HasSubstr("index of another export? It does not name model-00001-of-00003"));
}

TEST(A05, OpensASingleFileWithoutAnIndex) {
  const TestFolder folder;
  folder.Write("model.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, F32Data({2.0F})}}));
  const auto files = TensorFiles::Open(folder.path());
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(ReadScalar<float>(*files, "a", 0), 2.0F);
}

TEST(A05, RefusesATensorThatIsNotWhereTheIndexSays) {
  const TestFolder folder;
  WriteShards(folder);
  folder.Write("model.safetensors.index.json",
               R"({"weight_map": {"a": "model-00001-of-00003.safetensors",
                                  "b": "model-00001-of-00003.safetensors"}})");
  EXPECT_THAT(MessageOf(folder.path()), HasSubstr("tensor b: not in model-00001-of-00003"));
  folder.Write("model.safetensors.index.json",
               R"({"weight_map": {"a": "model-00002-of-00003.safetensors",
                                  "b": "model-00001-of-00003.safetensors"}})");
  EXPECT_THAT(MessageOf(folder.path()), HasSubstr("tensor a: index says model-00002-of-00003"));
}

TEST(A05, RefusesATensorInTwoShards) {
  const TestFolder folder;
  WriteShards(folder);
  folder.Write("model-00002-of-00003.safetensors",
               MakeSafetensors({{"a", DType::kF32, {1}, F32Data({2.0F})},
                                {"b", DType::kF32, {1}, F32Data({2.0F})}}));
  EXPECT_THAT(MessageOf(folder.path()), HasSubstr("tensor a: already in"));
}

TEST(A05, NoIndexLeadsOutOfItsFolder) {
  const TestFolder folder;
  for (const char* name : {"../x.safetensors", "/etc/passwd", "..", "", "a/b", "a\\u0000b"}) {
    folder.Write("model.safetensors.index.json",
                 fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", name));
    EXPECT_THAT(MessageOf(folder.path()), HasSubstr("plain name")) << name;
  }
}

TEST(A05, SaysWhatAFolderHoldsInstead) {
  const TestFolder folder;
  EXPECT_THAT(MessageOf(folder.path()), HasSubstr("no safetensors file"));
  folder.Write("pytorch_model.bin", "PK");
  EXPECT_THAT(MessageOf(folder.path()), HasSubstr("PyTorch pickles"));
  folder.Write("model-00001-of-00002.safetensors", "x");
  EXPECT_THAT(MessageOf(folder.path()), HasSubstr("model-00001-of-00002.safetensors without"));
  EXPECT_THAT(MessageOf(folder.Path("absent")), HasSubstr("No such file"));
}

TEST(TensorFiles, TakesShardsUpToTheLimit) {
  const TestFolder folder;
  std::string map;
  for (size_t i = 0; i <= kShardCountMax; ++i) {
    map += fmt::format("{}\"t{}\": \"s{}\"", i == 0 ? "" : ",", i, i);
  }
  folder.Write("model.safetensors.index.json", fmt::format(R"({{"weight_map": {{{}}}}})", map));
  EXPECT_THAT(MessageOf(folder.path()), HasSubstr("1001 shards, at most 1000"));
}

// A sparse file with one BF16 tensor of 2.5 GB and markers where 32-bit sizes break.
TEST(E04, ReadsATensorBeyondTwoGiB) {
  const TestFolder folder;
  constexpr uint64_t kTensorBytes = uint64_t{2500} * 1000 * 1000;
  std::string header = Header({Entry("e", fmt::format("[{}]", kTensorBytes / 2),
                                     fmt::format("[0,{}]", kTensorBytes), "BF16")});
  const std::string path = folder.Write("x.safetensors", RawSafetensors(header, ""));
  const uint64_t data_offset = 8 + header.size();
  std::filesystem::resize_file(path, data_offset + kTensorBytes);
  const uint64_t places[] = {0, (uint64_t{1} << 31) - 1, uint64_t{1} << 31, kTensorBytes - 1};
  {
    const auto file = io::File::OpenReadWrite(path);
    ASSERT_TRUE(file);
    for (size_t i = 0; i < std::size(places); ++i) {
      const std::array<std::byte, 1> marker = {static_cast<std::byte>(i + 1)};
      ASSERT_TRUE(file->WriteAt(data_offset + places[i], marker));
    }
  }
  const auto files = TensorFiles::Open(path);
  ASSERT_TRUE(files) << files.error().message();
  for (size_t i = 0; i < std::size(places); ++i) {
    std::array<std::byte, 1> found = {};
    ASSERT_TRUE(files->Read(*files->Find("e"), places[i], found));
    EXPECT_EQ(found[0], static_cast<std::byte>(i + 1));
  }
  const io::AliasedBuffer whole(kTensorBytes);
  const auto status = files->Read(*files->Find("e"), 0, whole.bytes());
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(whole.bytes().back(), std::byte{4});
}

TEST(E04, AShardCutAfterItWasOpenedIsNamedWithOffsetWantedAndGot) {
  const TestFolder folder;
  const std::string path =
      folder.Write("x.safetensors",
                   MakeSafetensors({{"a", DType::kF32, {256}, F32Data(std::vector<float>(256))}}));
  const auto files = TensorFiles::Open(path);
  ASSERT_TRUE(files);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 100);
  std::vector<std::byte> bytes(1024);
  const auto status = files->Read(*files->Find("a"), 0, bytes);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(status.error().message(), HasSubstr(path));
  EXPECT_THAT(status.error().message(), HasSubstr("1024 bytes wanted, the file ends after 924"));
}

TEST(TensorFiles, OpensAnImageInsideAnotherFile) {
  const TestFolder folder;
  const std::string image = MakeSafetensors({{"a", DType::kF32, {2}, F32Data({5.0F, 6.0F})}});
  const std::string path = folder.Write("v", std::string(100, 'v') + image + "tail");
  const auto files = TensorFiles::OpenEmbedded(path, 100, image.size());
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(ReadScalar<float>(*files, "a", 1), 6.0F);
  EXPECT_FALSE(TensorFiles::OpenEmbedded(path, 100, image.size() + 5));
  EXPECT_FALSE(TensorFiles::OpenEmbedded(path, ~uint64_t{0}, image.size()));
  EXPECT_FALSE(TensorFiles::OpenEmbedded(path, 100, image.size() - 1));
}

TEST(Damage, EveryTruncationOfASmallFileIsRefused) {
  const TestFolder folder;
  const std::string whole = MakeSafetensors(
      {{"a", DType::kF32, {2}, F32Data({5.0F, 6.0F})}, {"b", DType::kBF16, {1}, BF16Data({1.0F})}});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(TensorFiles::Open(folder.Write("x.safetensors", whole.substr(0, size)))) << size;
  }
  EXPECT_TRUE(TensorFiles::Open(folder.Write("x.safetensors", whole)));
}

// What is accepted after a flip keeps every promise: ranges inside the file that fit the shapes.
TEST(Damage, NoFlippedBitBreaksAPromise) {
  const TestFolder folder;
  const std::string whole = MakeSafetensors(
      {{"a", DType::kF32, {2}, F32Data({5.0F, 6.0F})}, {"b", DType::kBF16, {1}, BF16Data({1.0F})}});
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const auto files = TensorFiles::Open(folder.Write("x.safetensors", damaged));
    if (!files) continue;
    for (const auto& [name, info] : files->tensors()) {
      EXPECT_TRUE(RangeFits(info.offset, info.size, whole.size()));
      EXPECT_EQ(*tensor::ElementCount(info.shape) * tensor::DTypeBytes(info.dtype), info.size);
    }
  }
}

// Makes the file that a row of damaged.json describes, as apply_damage.py does.
std::string ApplyDamage(const Json& row, std::string content) {
  content.resize(*row.Find("bytes")->AsUint(), '\0');
  for (const Json& edit : *row.Find("edits")->AsArray()) {
    uint64_t at = *(*edit.AsArray())[0].AsUint();
    const std::string& hex = *(*edit.AsArray())[1].AsString();
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      content[at++] = static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
  }
  return content;
}

TEST(Damage, RefusesTheDamagedTrunksOfTheReferenceData) {
  const std::string reference = ReferenceFolder("vaults/damaged");
  if (reference.empty()) GTEST_SKIP() << SMOE_SHARED_DIR << "/reference/vaults/damaged is absent";
  struct Case {
    const char* name;
    const char* message;
  };
  const Case cases[] = {
      {"trunk_header_cut", "header of"},
      {"trunk_header_huge", "kSafetensorsHeaderBytesMax"},
      {"trunk_not_json", "must begin with '{'"},
      {"trunk_data_cut", "the file holds"},
      {"trunk_offset_past_end", "the file holds"},
      {"trunk_offset_reversed", "reversed"},
      {"trunk_shape_lies", "needs"},
      {"trunk_dtype", "dtype F99"},
      {"trunk_missing_tensor", "a gap"},
      // Sound as safetensors: the model refuses them.
      {"trunk_wrong_shape", "opened"},
      {"trunk_nan", "opened"},
  };
  const TestFolder folder;
  const Json list =
      *Json::Parse(*io::ReadWholeFile(reference + "/damaged.json", 16 * kMiB), "damaged.json");
  const std::string base =
      *io::ReadWholeFile(reference + "/" + *list.Find("trunk_base")->AsString(), 16 * kMiB);
  for (const Case& test : cases) {
    const std::string file_name = fmt::format("{}.scout.safetensors", test.name);
    std::string path = reference + "/" + file_name;
    size_t found_count = 0;
    for (const Json& row : *list.Find("files")->AsArray()) {
      if (*row.Find("file")->AsString() != file_name) continue;
      ++found_count;
      if (row.Find("edits") != nullptr) path = folder.Write(file_name, ApplyDamage(row, base));
    }
    EXPECT_EQ(found_count, 1U) << file_name;
    EXPECT_THAT(MessageOf(path), HasSubstr(test.message)) << test.name;
  }
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TestFolder folder;
  const std::vector<TensorSpec> specs = {
      {"x\"y", DType::kBF16, {2, 3}}, {"scalar", DType::kF32, {}}, {"none", DType::kU8, {0, 4}}};
  const auto layout = LayOutSafetensors(specs, {{"format", "pt"}});
  ASSERT_TRUE(layout) << layout.error().message();
  EXPECT_EQ(layout->header.size() % 8, 0U);
  EXPECT_EQ(layout->total_bytes, layout->header.size() + 16);
  const std::string data = BF16Data({1, 2, 3, 4, 5, 6}) + F32Data({7.5F});
  const auto files = TensorFiles::Open(folder.Write("x.safetensors", layout->header + data));
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->Find("x\"y")->shape, (tensor::Shape{2, 3}));
  EXPECT_EQ(ReadScalar<float>(*files, "scalar", 0), 7.5F);
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(files->Find(specs[i].name)->offset, layout->offsets[i]);
  }
}

TEST(SafetensorsWriter, RefusesDuplicatesReservedNamesAndOverflow) {
  EXPECT_FALSE(LayOutSafetensors({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}, {}));
  EXPECT_FALSE(LayOutSafetensors({{"__metadata__", DType::kU8, {1}}}, {}));
  EXPECT_FALSE(LayOutSafetensors({{"a", DType::kF32, {uint64_t{1} << 62}}}, {}));
}

TEST(TensorFiles, OpensEveryReferenceCheckpoint) {
  const std::string folder = ReferenceFolder("checkpoints");
  if (folder.empty()) GTEST_SKIP() << SMOE_SHARED_DIR << "/reference/checkpoints is absent";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_EQ(MessageOf(entry.path().string()), "opened") << entry.path();
  }
}

}  // namespace
}  // namespace smoe::checkpoint
