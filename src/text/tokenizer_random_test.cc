// Ten thousand random strings against the reference library. The hashes are written by
// tools/make_tokenizer_goldens.py, which has the same generator.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "text/files_for_test.h"
#include "text/token_stream.h"
#include "text/tokenizer.h"

namespace smoe::text {
namespace {

constexpr std::array<uint64_t, 10> kHashes = {
    0x86205efb4274c817, 0xf3372f5489b94577, 0x0470d0852825c15b, 0x107ed0c6ad599e1d,
    0x2b31b4faebbe9bd1, 0x76ac1d1be4c01373, 0x567c6c26867fc8c9, 0x384c714193b9aebb,
    0x0116264326e1a48c, 0x3d12a5e218f8dac7,
};

constexpr std::string_view kPieces[] = {"<|im_end|>", "<tool_call>", "<|im_", "end|>",
                                        "'ll",        " the",        "\r\n",  "  ",
                                        "\xcc\x81",   "I'VE",        "12345", "\xe2\x80\xa9"};

struct Range {
  uint32_t first;
  uint32_t count;
};
constexpr Range kRanges[] = {{0x61, 26},    {0x30, 10},        {0xc0, 0x180},     {0x300, 0x70},
                             {0x660, 10},   {0x4e00, 0x5000},  {0x20000, 0xa000}, {0x1f300, 0x300},
                             {0x1, 0xd7ff}, {0xe000, 0x101fff}};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint32_t Below(size_t bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state_ >> 33) % bound);
  }

 private:
  uint64_t state_;
};

void AppendUtf8(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

std::string RandomText(Random* random) {
  std::string text;
  const uint32_t length = random->Below(24);
  for (uint32_t i = 0; i < length; ++i) {
    const uint32_t kind = random->Below(std::size(kRanges) + 4);
    if (kind < std::size(kRanges)) {
      AppendUtf8(kRanges[kind].first + random->Below(kRanges[kind].count), &text);
    } else if (kind < std::size(kRanges) + 2) {
      text += kPieces[random->Below(std::size(kPieces))];
    } else {
      text += " \n\tA"[random->Below(4)];
    }
  }
  return text;
}

class Fnv {
 public:
  void Add(std::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  }
  void Add(uint32_t id) {
    for (uint32_t shift = 0; shift < 32; shift += 8) {
      value_ = (value_ ^ (id >> shift & 0xff)) * 0x100000001b3u;
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

TEST(TokenizerRandom, B01TenThousandStringsHaveTheIdsAndTextsOfTheReference) {
  Result<Tokenizer> tokenizer = Tokenizer::Load(TinyMoeFile("tokenizer.json"), "tokenizer.json");
  ASSERT_TRUE(tokenizer);
  for (uint64_t block = 0; block < kHashes.size(); ++block) {
    Random random(block);
    Fnv fnv;
    for (int i = 0; i < 1000; ++i) {
      const std::string text = RandomText(&random);
      for (const ParseTokens parse : {ParseTokens::kAll, ParseTokens::kNotSpecial}) {
        const std::vector<uint32_t> ids = tokenizer->Encode(text, {false, parse}).value();
        for (const uint32_t id : ids) fnv.Add(id);
        fnv.Add(0xffffffffu);
        const std::string decoded = tokenizer->Decode(ids, false).value();
        fnv.Add(decoded);
        TokenStream stream(*tokenizer, false);
        std::string streamed;
        for (const uint32_t id : ids) streamed += stream.Push(id).value();
        EXPECT_EQ(streamed + stream.Finish().value(), decoded) << "block " << block << " " << i;
      }
    }
    EXPECT_EQ(fnv.value(), kHashes[block]) << "block " << block;
  }
}

}  // namespace
}  // namespace smoe::text
