#include "model/kv_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "io/file.h"

namespace smoe::model {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr size_t kTokenCount = 40;  // a page and a quarter

KvShape ShapeOf(kernels::KvKind kind) {
  return {.layer_count = 2, .kv_width = 6, .key_value_heads = 2, .kind = kind};
}

std::unique_ptr<KvCache> MakeCache(kernels::KvKind kind = kernels::KvKind::kF32) {
  auto cache = KvCache::Create(ShapeOf(kind), 4 * kKvPageTokens);
  EXPECT_TRUE(cache.has_value());
  return std::move(*cache);
}

std::vector<uint32_t> Tokens() {
  std::vector<uint32_t> tokens(kTokenCount);
  for (uint32_t i = 0; i < kTokenCount; ++i) tokens[i] = 3 * i;
  return tokens;
}

KvFileOwner Owner() {
  return {.model_fingerprint = 0x1234, .settings = "arithmetic int8", .vocab_size = 1000};
}

// Elements are whole numbers below 127 with one 127 in each group: exact in every kind.
KvSequence MakeSequence(KvCache* cache, size_t token_count) {
  KvSequence kv = cache->NewSequence();
  EXPECT_TRUE(kv.Reserve(token_count).has_value());
  for (size_t position = 0; position < token_count; ++position) {
    const auto mark = static_cast<float>(position);
    const std::vector<float> keys = {127, mark, 1, 127, -mark, 2};
    const std::vector<float> values = {mark, 127, 3, -mark, 4, 127};
    for (uint32_t layer = 0; layer < 2; ++layer) {
      kv.Write(kernels::kScalarKernels, layer, position, keys.data(), values.data());
    }
  }
  kv.SetTokenCount(token_count);
  return kv;
}

class KvFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("smoe_kv_file_{}", ::getpid());
    fs::create_directories(folder_);
    path_ = (folder_ / "talk.kv").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Save(kernels::KvKind kind, std::string_view note = "note") {
    const auto cache = MakeCache(kind);
    const KvSequence kv = MakeSequence(cache.get(), kTokenCount);
    const auto tokens = Tokens();
    const Status saved = SaveKvFile(path_, Owner(), ShapeOf(kind), kv, tokens, note);
    ASSERT_TRUE(saved) << saved.error().message();
  }
  std::string Content() const { return io::ReadWholeFile(path_, 1 << 20).value(); }
  void Replace(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
  }
  // The content with another header, whose checksums are right unless told otherwise.
  void ReplaceHeader(const std::string& content, const std::function<void(KvFileHeader*)>& change,
                     bool mends_checksum = true) const {
    auto header = LoadStruct<KvFileHeader>(AsBytes(content));
    std::string changed = content;
    header.body_checksum = Checksum(AsBytes(content).subspan(sizeof(header)));
    change(&header);
    if (mends_checksum) {
      header.header_checksum = 0;
      header.header_checksum = Checksum(std::as_bytes(std::span(&header, 1)));
    }
    std::memcpy(changed.data(), &header, sizeof(header));
    Replace(changed);
  }
  // What reading it says; empty: it was read. The cache holds nothing of a file that was refused.
  std::string Refusal(const KvFileOwner& owner = Owner(), size_t token_max = 1000,
                      kernels::KvKind kind = kernels::KvKind::kF32) const {
    const auto cache = MakeCache(kind);
    const auto content = LoadKvFile(path_, owner, token_max, cache.get());
    if (content) return "";
    EXPECT_EQ(cache->pool().kept_unused_count(), 0u);
    EXPECT_EQ(cache->pool().unused_count(), 4u);
    EXPECT_THAT(content.error().message(), testing::StartsWith(path_));
    return content.error().message();
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(KvFileTest, GivesBackEveryTokenKeyAndValueInEveryKind) {
  for (const auto kind : {kernels::KvKind::kF32, kernels::KvKind::kF16, kernels::KvKind::kInt8}) {
    Save(kind);
    const auto cache = MakeCache(kind);
    const auto content = LoadKvFile(path_, Owner(), kTokenCount, cache.get());
    ASSERT_TRUE(content) << content.error().message();
    EXPECT_EQ(content->tokens, Tokens());
    EXPECT_EQ(content->note, "note");
    KvSequence kv = cache->NewSequence();
    kv.Adopt(content->tokens);
    ASSERT_EQ(kv.token_count(), kTokenCount);
    for (size_t position = 0; position < kTokenCount; ++position) {
      for (uint32_t layer = 0; layer < 2; ++layer) {
        ASSERT_EQ(kv.KeyAt(layer, position, 1), static_cast<float>(position));
        ASSERT_EQ(kv.KeyAt(layer, position, 5), 2);
        ASSERT_EQ(kv.ValueAt(layer, position, 3), -static_cast<float>(position));
        ASSERT_EQ(kv.ValueAt(layer, position, 5), 127);
      }
    }
  }
}

// By docs/formats/kv.md: 128 + 15 settings + 160 tokens + 4 note, up to 4096; then two pages of
// 2 layers x 2 heads x 2 x 32 x 3 floats.
TEST_F(KvFileTest, LiesAsTheFormatSays) {
  Save(kernels::KvKind::kF32);
  const std::string content = Content();
  EXPECT_EQ(content.size(), 4096u + 2 * 3072);
  EXPECT_EQ(content.substr(0, 8), "SMOE-KV\n");
  EXPECT_EQ(content.substr(128, 15), "arithmetic int8");
  EXPECT_EQ(LoadStruct<uint32_t>(AsBytes(content), 128 + 15 + 4 * 7), 21u);
  EXPECT_EQ(content.substr(128 + 15 + 160, 4), "note");
  // Layer 1, head 1, its second key element of token 9; 32 floats a line, 192 a head.
  EXPECT_EQ(LoadStruct<float>(AsBytes(content), 4096 + 4 * (3 * 192 + 1 * 32 + 9)), -9);
}

// What an earlier, longer sequence left in the page never reaches the drive.
TEST_F(KvFileTest, HoldsNothingBehindTheLastToken) {
  const auto cache = MakeCache();
  { const KvSequence longer = MakeSequence(cache.get(), 2 * kKvPageTokens); }
  const KvSequence kv = MakeSequence(cache.get(), kTokenCount);
  ASSERT_TRUE(SaveKvFile(path_, Owner(), ShapeOf(kernels::KvKind::kF32), kv, Tokens(), "note"));
  const std::string content = Content();
  Save(kernels::KvKind::kF32);  // from memory that nobody had used
  EXPECT_EQ(content, Content());
}

TEST_F(KvFileTest, EveryTruncationIsRefused) {
  Save(kernels::KvKind::kF32);
  const std::string content = Content();
  for (size_t size = 0; size < content.size(); size += size < 300 ? 1 : 61) {
    Replace(content.substr(0, size));
    EXPECT_THAT(Refusal(), HasSubstr("truncated")) << size;
  }
  Replace(content + "x");
  EXPECT_THAT(Refusal(), HasSubstr("10241 bytes, the header says 10240"));
}

TEST_F(KvFileTest, EveryFlippedBitOfTheHeaderAndASampleBehindItAreFound) {
  Save(kernels::KvKind::kF32);
  const std::string content = Content();
  constexpr size_t kHeaderBits = 128 * 8;
  constexpr size_t kSampleBits = 97 * 8 + 1;  // each time another bit of its byte
  for (size_t at = 0; at < content.size() * 8; at += at < kHeaderBits ? 1 : kSampleBits) {
    std::string flipped = content;
    flipped[at / 8] = static_cast<char>(flipped[at / 8] ^ (1 << (at % 8)));
    Replace(flipped);
    EXPECT_NE(Refusal(), "") << "bit " << at;
  }
}

TEST_F(KvFileTest, OthersAreRefusedByName) {
  Save(kernels::KvKind::kF32);
  KvFileOwner owner = Owner();
  owner.model_fingerprint = 0x99;
  EXPECT_THAT(Refusal(owner), HasSubstr("another model (fingerprint 0000000000001234, this one has "
                                        "0000000000000099)"));
  owner = Owner();
  owner.settings = "arithmetic f32";
  EXPECT_THAT(Refusal(owner), HasSubstr("computed with arithmetic int8, this run has arithmetic "
                                        "f32"));
  EXPECT_THAT(Refusal(Owner(), 1000, kernels::KvKind::kF16),
              HasSubstr("keys and values are f32, here they are f16; --kv"));
  EXPECT_THAT(Refusal(Owner(), 39), HasSubstr("holds 40 tokens, the context 39"));
  owner = Owner();
  owner.vocab_size = 117;
  EXPECT_THAT(Refusal(owner), HasSubstr("token 117 at position 39, the vocabulary has 117"));
  Replace("GGUF");
  EXPECT_THAT(Refusal(), HasSubstr("4 bytes"));
  Replace(std::string(5000, 'x'));
  EXPECT_THAT(Refusal(), HasSubstr("no file of keys and values"));
}

TEST_F(KvFileTest, ShapesOfOthersAreRefusedByField) {
  Save(kernels::KvKind::kF32);
  for (KvShape shape : {KvShape{.layer_count = 1, .kv_width = 6, .key_value_heads = 2},
                        KvShape{.layer_count = 2, .kv_width = 6, .key_value_heads = 1},
                        KvShape{.layer_count = 2, .kv_width = 8, .key_value_heads = 2}}) {
    const auto cache = KvCache::Create(shape, 4 * kKvPageTokens).value();
    const auto content = LoadKvFile(path_, Owner(), 1000, cache.get());
    ASSERT_FALSE(content);
    EXPECT_EQ(content.error().code(), ErrorCode::kInvalid);
    EXPECT_THAT(content.error().message(), HasSubstr("the model has"));
  }
}

// Right checksums do not make a right file.
TEST_F(KvFileTest, HostileFieldsAreRefusedBeforeTheySizeAnything) {
  Save(kernels::KvKind::kF32);
  const std::string content = Content();
  const auto refusal = [&](const std::function<void(KvFileHeader*)>& change) {
    ReplaceHeader(content, change);
    return Refusal();
  };
  EXPECT_EQ(refusal([](KvFileHeader*) {}), "") << "the test mends checksums as the writer does";
  using H = KvFileHeader;
  EXPECT_THAT(refusal([](H* h) { h->version = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(refusal([](H* h) { h->header_bytes = 64; }), HasSubstr("header_bytes"));
  EXPECT_THAT(refusal([](H* h) { h->settings_bytes = 257; }), HasSubstr("settings_bytes: 257"));
  EXPECT_THAT(refusal([](H* h) { h->note_bytes = kKvNoteBytesMax + 1; }), HasSubstr("note_bytes"));
  EXPECT_THAT(refusal([](H* h) { h->note_bytes = UINT64_MAX; }), HasSubstr("note_bytes"));
  EXPECT_THAT(refusal([](H* h) { h->token_count = 0; }), HasSubstr("token_count: 0"));
  EXPECT_THAT(refusal([](H* h) { h->token_count = UINT64_MAX; }), HasSubstr("file_bytes"));
  EXPECT_THAT(refusal([](H* h) { h->token_count = uint64_t{1} << 40; }), HasSubstr("file_bytes"));
  EXPECT_THAT(refusal([](H* h) { h->token_count = 65; }), HasSubstr("file_bytes"));
  EXPECT_THAT(refusal([](H* h) { h->page_bytes = UINT64_MAX; }), HasSubstr("file_bytes"));
  EXPECT_THAT(refusal([](H* h) { h->file_bytes = UINT64_MAX; }), HasSubstr("file_bytes"));
  EXPECT_THAT(refusal([](H* h) { h->kv_kind = 77; }), HasSubstr("number 77"));
  EXPECT_THAT(refusal([](H* h) { h->head_dim = 4; }), HasSubstr("head_dim: 4"));
  EXPECT_THAT(refusal([](H* h) { h->page_tokens = 64; }), HasSubstr("page_tokens: 64"));
  EXPECT_THAT(refusal([](H* h) { h->zero[31] = 1; }), HasSubstr("not all zero"));
  EXPECT_THAT(refusal([](H* h) { h->body_checksum ^= 1; }), HasSubstr("body_checksum"));
  // One token less: the page's size is the same, and the note begins four bytes too early.
  EXPECT_THAT(refusal([](H* h) { h->token_count = 39; }), HasSubstr("not zero"));
  std::string padding = content;
  padding[4095] = 1;
  ReplaceHeader(padding, [](H*) {});
  EXPECT_THAT(Refusal(), HasSubstr("not zero"));
}

TEST_F(KvFileTest, ANoteBeyondTheLimitIsNotWritten) {
  const auto cache = MakeCache();
  const KvSequence kv = MakeSequence(cache.get(), 1);
  const std::string note(kKvNoteBytesMax + 1, 'x');
  const Status refused =
      SaveKvFile(path_, Owner(), ShapeOf(kernels::KvKind::kF32), kv, Tokens(), note);
  ASSERT_FALSE(refused);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(KvFileTest, ASaveThatFailsLeavesTheOldFile) {
  Save(kernels::KvKind::kF32, "old");
  fs::create_directory(path_ + ".partial");
  const auto cache = MakeCache();
  const KvSequence kv = MakeSequence(cache.get(), 1);
  EXPECT_FALSE(SaveKvFile(path_, Owner(), ShapeOf(kernels::KvKind::kF32), kv, Tokens(), "new"));
  EXPECT_EQ(Refusal(), "");
  EXPECT_THAT(Content(), HasSubstr("old"));
}

}  // namespace
}  // namespace smoe::model
