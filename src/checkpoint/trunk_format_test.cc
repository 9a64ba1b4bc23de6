#include "checkpoint/trunk_format.h"

#include <gtest/gtest.h>

namespace smoe::checkpoint {
namespace {

using enum TrunkFormat;
using tensor::WeightFormat;

TEST(TrunkFormats, AreReadFromOneWordAndFromAListOfParts) {
  const auto plain = ParseTrunkFormats("--trunk-format", "q4");
  ASSERT_TRUE(plain) << plain.error().message();
  EXPECT_EQ(*plain, TrunkFormats::All(kQ4));
  const auto list = ParseTrunkFormats("--trunk-format", "int8,head=bf16,output=source");
  ASSERT_TRUE(list) << list.error().message();
  EXPECT_EQ(list->of,
            (std::array<TrunkFormat, kTrunkPartCount>{kInt8, kBf16, kInt8, kSource, kInt8}));
  EXPECT_EQ(TrunkFormatsText(*list), "int8,head=bf16,output=source");
  EXPECT_EQ(TrunkFormatsText(TrunkFormats::All(kBf16)), "bf16");
}

TEST(TrunkFormats, AreRefusedByTheWordThatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "\"\""},
      {"int4", "\"int4\""},
      {"head=int8", "\"head=int8\""},
      {"int8,", "\"\""},
      {"int8,router=f32", "\"router=f32\""},
      {"int8,head", "\"head\""},
      {"int8,head=", "\"head=\""},
      {"int8,head=q8,dense=q4", "\"head=q8\""},
  };
  for (const auto& [text, word] : cases) {
    const auto parsed = ParseTrunkFormats("--trunk-format", text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalid);
    EXPECT_NE(parsed.error().message().find(fmt::format(": {}, expected", word)), std::string::npos)
        << parsed.error().message();
  }
}

TEST(TrunkParts, AreToldByTheStemAndRoutersAreNone) {
  const auto part = [](std::string_view stem) { return FindTrunkPart(stem, "model.", 2); };
  EXPECT_EQ(part("lm_head"), TrunkPart::kHead);
  EXPECT_EQ(part("model.embed_tokens"), TrunkPart::kEmbedding);
  EXPECT_EQ(part("model.layers.1.self_attn.k_proj"), TrunkPart::kAttention);
  EXPECT_EQ(part("model.layers.0.self_attn.o_proj"), TrunkPart::kOutput);
  EXPECT_EQ(part("model.layers.0.mlp.down_proj"), TrunkPart::kDense);
  EXPECT_EQ(part("model.layers.0.mlp.shared_expert.up_proj"), TrunkPart::kDense);
  for (const char* other : {"model.layers.0.mlp.gate", "model.layers.0.mlp.shared_expert_gate",
                            "model.norm", "model.layers.0.mlp.experts.3.up_proj",
                            "model.layers.2.self_attn.q_proj", "visual.layers.0.self_attn.q_proj",
                            "mtp.embed_tokens", "model.layers.0.self_attn.q_norm"}) {
    EXPECT_EQ(part(other), std::nullopt) << other;
  }
}

TEST(TrunkFormats, AMatrixNeverBecomesWiderThanItIs) {
  TensorInfo info;
  LinearWeight weight;
  weight.codes.info = &info;
  weight.shape = {3, 64};
  const auto choose = [&](LinearKind kind, tensor::DType dtype) {
    weight.kind = kind;
    info.dtype = dtype;
    std::vector<WeightFormat> chosen;
    for (const TrunkFormat asked : {kSource, kBf16, kInt8, kQ4}) {
      chosen.push_back(ChooseFormat(asked, weight));
    }
    return chosen;
  };
  using enum WeightFormat;
  using Chosen = std::vector<WeightFormat>;
  EXPECT_EQ(choose(LinearKind::kFloat, tensor::DType::kF32),
            (Chosen{kF32, WeightFormat::kBF16, WeightFormat::kInt8, kSmoeQ4}));
  EXPECT_EQ(choose(LinearKind::kFloat, tensor::DType::kF16),
            (Chosen{kF16, WeightFormat::kBF16, WeightFormat::kInt8, kSmoeQ4}));
  EXPECT_EQ(choose(LinearKind::kNvfp4, tensor::DType::kU8),
            (Chosen{kF32, WeightFormat::kBF16, WeightFormat::kInt8, kSmoeQ4}));
  EXPECT_EQ(choose(LinearKind::kInt8, tensor::DType::kI8),
            (Chosen{WeightFormat::kInt8, WeightFormat::kInt8, WeightFormat::kInt8, kSmoeQ4}));
  EXPECT_EQ(choose(LinearKind::kQ4, tensor::DType::kU8),
            (Chosen{kSmoeQ4, kSmoeQ4, kSmoeQ4, kSmoeQ4}));
  weight.shape = {3, 48};  // half a group is left over
  EXPECT_EQ(choose(LinearKind::kFloat, tensor::DType::kBF16).back(), WeightFormat::kInt8);
}

}  // namespace
}  // namespace smoe::checkpoint
