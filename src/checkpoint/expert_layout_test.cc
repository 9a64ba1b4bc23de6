#include "checkpoint/expert_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "checkpoint/files_for_test.h"
#include "io/file.h"

namespace smoe::checkpoint {
namespace {

using tensor::DType;
using testing::HasSubstr;

// One toy: its experts' values are a formula, its files are written in every naming.
struct Toy {
  uint32_t layer_count = 2;
  uint32_t expert_count = 3;
  uint32_t width = 5;   // I
  uint32_t hidden = 8;  // H
  std::string model_type = "qwen3_moe";
  std::string prefix = "model.";

  // Exact in f32 and different for each element.
  static float Value(uint32_t layer, uint32_t expert, Proj proj, uint32_t row, uint32_t col) {
    return static_cast<float>(layer * 100000 + expert * 10000 + static_cast<uint32_t>(proj) * 2000 +
                              row * 40 + col) +
           0.5F;
  }
  uint32_t Rows(Proj proj) const { return proj == Proj::kDown ? hidden : width; }
  uint32_t Cols(Proj proj) const { return proj == Proj::kDown ? width : hidden; }

  // [out][in] of one projection, or [in][out].
  std::vector<float> Matrix(uint32_t layer, uint32_t expert, Proj proj, bool turned = false) const {
    std::vector<float> values;
    const uint32_t outer = turned ? Cols(proj) : Rows(proj);
    const uint32_t inner = turned ? Rows(proj) : Cols(proj);
    for (uint32_t a = 0; a < outer; ++a) {
      for (uint32_t b = 0; b < inner; ++b) {
        values.push_back(turned ? Value(layer, expert, proj, b, a)
                                : Value(layer, expert, proj, a, b));
      }
    }
    return values;
  }

  std::string Stem(uint32_t layer, const std::string& rest) const {
    return fmt::format("{}layers.{}.{}", prefix, layer, rest);
  }

  ModelConfig Config() const {
    ModelConfig config;
    config.model_type = model_type;
    config.family = model_type == "qwen3_moe" ? Family::kQwen3Moe
                    : model_type == "gpt_oss" ? Family::kGptOss
                                              : Family::kUnknown;
    config.hidden_size = hidden;
    config.moe_intermediate_size = width;
    config.num_experts = expert_count;
    config.num_hidden_layers = layer_count;
    return config;
  }
};

void Append(std::vector<float>* to, const std::vector<float>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

std::vector<TestTensor> PerExpert(const Toy& toy, const std::string& block,
                                  const std::vector<std::string>& words) {
  std::vector<TestTensor> tensors;
  for (uint32_t layer = 0; layer < toy.layer_count; ++layer) {
    for (uint32_t expert = 0; expert < toy.expert_count; ++expert) {
      for (const Proj proj : {Proj::kGate, Proj::kUp, Proj::kDown}) {
        tensors.push_back({toy.Stem(layer, fmt::format("{}.experts.{}.{}.weight", block, expert,
                                                       words[static_cast<size_t>(proj)])),
                           DType::kF32,
                           {toy.Rows(proj), toy.Cols(proj)},
                           F32Data(toy.Matrix(layer, expert, proj))});
      }
    }
  }
  return tensors;
}
std::vector<TestTensor> PerExpert(const Toy& toy) {
  return PerExpert(toy, "mlp", {"gate_proj", "up_proj", "down_proj"});
}

// gate and up of one expert as [2I][H], one after the other or row by row; or its transpose.
std::vector<float> GateUp(const Toy& toy, uint32_t layer, uint32_t expert, bool turned,
                          bool interleaved) {
  std::vector<float> plain(size_t{2} * toy.width * toy.hidden);
  for (uint32_t row = 0; row < toy.width; ++row) {
    for (uint32_t col = 0; col < toy.hidden; ++col) {
      for (const Proj proj : {Proj::kGate, Proj::kUp}) {
        const uint32_t which = static_cast<uint32_t>(proj);
        const uint32_t out = interleaved ? 2 * row + which : which * toy.width + row;
        const size_t at =
            turned ? size_t{col} * 2 * toy.width + out : size_t{out} * toy.hidden + col;
        plain[at] = Toy::Value(layer, expert, proj, row, col);
      }
    }
  }
  return plain;
}

struct StackedForm {
  std::string gate_up = "mlp.experts.gate_up_proj";
  std::string down = "mlp.experts.down_proj";
  bool turned = false;
  bool interleaved = false;
};

std::vector<TestTensor> Stacked(const Toy& toy, const StackedForm& form) {
  std::vector<TestTensor> tensors;
  for (uint32_t layer = 0; layer < toy.layer_count; ++layer) {
    std::vector<float> gate_up;
    std::vector<float> down;
    for (uint32_t expert = 0; expert < toy.expert_count; ++expert) {
      Append(&gate_up, GateUp(toy, layer, expert, form.turned, form.interleaved));
      Append(&down, toy.Matrix(layer, expert, Proj::kDown, form.turned));
    }
    const uint64_t both = uint64_t{2} * toy.width;
    tensors.push_back({toy.Stem(layer, form.gate_up), DType::kF32,
                       form.turned ? tensor::Shape{toy.expert_count, toy.hidden, both}
                                   : tensor::Shape{toy.expert_count, both, toy.hidden},
                       F32Data(gate_up)});
    tensors.push_back({toy.Stem(layer, form.down), DType::kF32,
                       form.turned ? tensor::Shape{toy.expert_count, toy.width, toy.hidden}
                                   : tensor::Shape{toy.expert_count, toy.hidden, toy.width},
                       F32Data(down)});
  }
  return tensors;
}

std::vector<TestTensor> SwitchMlp(const Toy& toy) {
  std::vector<TestTensor> tensors;
  const char* words[] = {"gate_proj", "up_proj", "down_proj"};
  for (uint32_t layer = 0; layer < toy.layer_count; ++layer) {
    for (const Proj proj : {Proj::kGate, Proj::kUp, Proj::kDown}) {
      std::vector<float> values;
      for (uint32_t expert = 0; expert < toy.expert_count; ++expert) {
        Append(&values, toy.Matrix(layer, expert, proj));
      }
      tensors.push_back({toy.Stem(layer, fmt::format("mlp.switch_mlp.{}.weight",
                                                     words[static_cast<size_t>(proj)])),
                         DType::kF32,
                         {toy.expert_count, toy.Rows(proj), toy.Cols(proj)},
                         F32Data(values)});
    }
  }
  return tensors;
}

struct Opened {
  TestFolder folder;
  TensorFiles files;
  Result<ExpertLayout> layout = ExpertLayout();
};

std::unique_ptr<Opened> Open(const std::vector<TestTensor>& tensors, const ModelConfig& config) {
  auto opened = std::make_unique<Opened>();
  auto files = TensorFiles::Open(opened->folder.Write("x.safetensors", MakeSafetensors(tensors)));
  EXPECT_TRUE(files) << files.error().message();
  opened->files = std::move(*files);
  opened->layout = ExpertLayout::Detect(opened->files, config);
  return opened;
}

std::string Refusal(const std::vector<TestTensor>& tensors, const ModelConfig& config) {
  const auto opened = Open(tensors, config);
  return opened->layout ? "accepted" : opened->layout.error().message();
}

void ExpectToy(const Toy& toy, const std::vector<TestTensor>& tensors, const char* naming) {
  SCOPED_TRACE(naming);
  const auto opened = Open(tensors, toy.Config());
  ASSERT_TRUE(opened->layout) << opened->layout.error().message();
  const ExpertLayout& layout = *opened->layout;
  EXPECT_THAT(layout.naming(), HasSubstr(naming));
  EXPECT_EQ(layout.hidden_size(), toy.hidden);
  EXPECT_EQ(layout.intermediate_size(), toy.width);
  ASSERT_EQ(layout.layers().size(), toy.layer_count);
  for (const TestTensor& tensor : tensors) EXPECT_TRUE(layout.IsExpertTensor(tensor.name));
  for (uint32_t layer = 0; layer < toy.layer_count; ++layer) {
    EXPECT_EQ(layout.layers()[layer].layer_index, layer);
    EXPECT_EQ(layout.layers()[layer].expert_count, toy.expert_count);
    EXPECT_FALSE(layout.layers()[layer].is_mtp);
    for (uint32_t expert = 0; expert < toy.expert_count; ++expert) {
      for (const Proj proj : {Proj::kGate, Proj::kUp, Proj::kDown}) {
        std::vector<float> values(size_t{toy.Rows(proj)} * toy.Cols(proj));
        const auto status =
            ReadExpertMatrix(opened->files, layout, layer, expert, proj, false, values);
        ASSERT_TRUE(status) << status.error().message();
        EXPECT_EQ(values, toy.Matrix(layer, expert, proj))
            << ProjName(proj) << " " << layer << "." << expert;
      }
    }
  }
}

TEST(A10, AllNamingsOfTheSameExpertsReadTheSame) {
  const Toy toy;
  ExpectToy(toy, PerExpert(toy), "per-expert gate_proj");
  ExpectToy(toy, PerExpert(toy, "block_sparse_moe", {"w1", "w3", "w2"}), "per-expert w1/w3/w2");
  ExpectToy(toy, Stacked(toy, {}), "gate_up_proj [E,2I,H]");
  ExpectToy(toy,
            Stacked(toy, {.gate_up = "mlp.experts.gate_up_proj.weight",
                          .down = "mlp.experts.down_proj.weight"}),
            "gate_up_proj [E,2I,H]");
  ExpectToy(toy, Stacked(toy, {.turned = true}), "gate_up_proj [E,H,2I]");
  ExpectToy(toy, SwitchMlp(toy), "gate_proj/up_proj/down_proj [E,I,H]");
  ExpectToy(toy,
            Stacked(toy, {.gate_up = "block_sparse_moe.input_linear.weight",
                          .down = "block_sparse_moe.output_linear.weight"}),
            "input_linear [E,2I,H]");
}

TEST(A10, GptOssStoresGateAndUpInterleaved) {
  Toy toy;
  toy.model_type = "gpt_oss";
  ExpectToy(toy, Stacked(toy, {.turned = true, .interleaved = true}), "interleaved");
  ExpectToy(toy, Stacked(toy, {.interleaved = true}), "interleaved");
}

TEST(A10, ASquareMatrixIsReadAsItsFamilyStoresIt) {
  Toy plain;
  plain.width = 4;  // 2I == H
  ExpectToy(plain, PerExpert(plain), "per-expert");
  ExpectToy(plain, Stacked(plain, {}), "[E,2I,H]");
  ExpectToy(plain, Stacked(plain, {.turned = true}), "[E,H,2I]");
  Toy llama = plain;
  llama.model_type = "llama4_text";
  ExpectToy(llama, Stacked(llama, {.turned = true}), "[E,H,2I]");
  Toy gpt_oss = plain;
  gpt_oss.model_type = "gpt_oss";
  gpt_oss.width = 8;  // down is square
  ExpectToy(gpt_oss, Stacked(gpt_oss, {.turned = true, .interleaved = true}), "[E,H,2I]");
  // All matrices square: nothing but the family can tell.
  Toy square = plain;
  square.width = 8;
  ExpectToy(square, SwitchMlp(square), "[E,I,H]");
}

TEST(A10, ExpertsUnderAnotherPrefixAreFound) {
  Toy toy;
  for (const char* prefix : {"model.language_model.", "language_model.model.", ""}) {
    toy.prefix = prefix;
    ExpectToy(toy, PerExpert(toy), "per-expert");
  }
}

TEST(A10, TwoNamingsOfTheSameExpertsAreRefused) {
  const Toy toy;
  std::vector<TestTensor> both = PerExpert(toy);
  for (const TestTensor& tensor : Stacked(toy, {})) both.push_back(tensor);
  EXPECT_THAT(Refusal(both, toy.Config()), HasSubstr("layer 0: experts are there twice"));

  std::vector<TestTensor> suffixes = Stacked(toy, {});
  for (const TestTensor& tensor : Stacked(toy, {.gate_up = "mlp.experts.gate_up_proj.weight",
                                               .down = "mlp.experts.down_proj.weight"})) {
    suffixes.push_back(tensor);
  }
  EXPECT_THAT(Refusal(suffixes, toy.Config()), HasSubstr("same experts"));

  std::vector<TestTensor> apart = Stacked(toy, {});
  apart.push_back(
      {"model.layers.0.mlp.experts.gate_proj", DType::kF32, {3, 5, 8}, std::string(480, '\0')});
  EXPECT_THAT(Refusal(apart, toy.Config()), HasSubstr("together and apart"));
}

TEST(A10, EveryMissingProjectionIsNamed) {
  const Toy toy;
  const std::vector<TestTensor> whole = PerExpert(toy);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::vector<TestTensor> tensors = whole;
    const std::string name = tensors[i].name;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(Refusal(tensors, toy.Config()), HasSubstr(name));
  }
  for (const std::vector<TestTensor>& stacked : {Stacked(toy, {}), SwitchMlp(toy)}) {
    for (size_t i = 0; i < stacked.size(); ++i) {
      std::vector<TestTensor> tensors = stacked;
      const std::string name = tensors[i].name;
      tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_THAT(Refusal(tensors, toy.Config()), HasSubstr(name));
    }
  }
}

TEST(A10, AMissingLastExpertIsNamed) {
  Toy toy;
  const std::vector<TestTensor> tensors = PerExpert(toy);
  toy.expert_count = 4;
  EXPECT_THAT(Refusal(tensors, toy.Config()),
              HasSubstr("model.layers.0.mlp.experts.3.gate_proj.weight: missing"));
  toy.expert_count = 2;
  EXPECT_THAT(Refusal(tensors, toy.Config()), HasSubstr("3 experts in the tensors"));
}

TEST(ExpertLayout, RefusesShapesThatDisagree) {
  const Toy toy;
  std::vector<TestTensor> tensors = PerExpert(toy);
  tensors[5].shape = {toy.width, toy.hidden};  // a down matrix the wrong way round
  EXPECT_THAT(Refusal(tensors, toy.Config()), HasSubstr(tensors[5].name));
  ModelConfig config = toy.Config();
  config.hidden_size = 9;
  EXPECT_THAT(Refusal(PerExpert(toy), config), HasSubstr("hidden size 8, the config says 9"));
  config = toy.Config();
  config.moe_intermediate_size = 6;
  EXPECT_THAT(Refusal(PerExpert(toy), config), HasSubstr("expert width 5, the config says 6"));
  config.hidden_size = 9;
  EXPECT_NE(Refusal(Stacked(toy, {}), config), "accepted");
}

TEST(ExpertLayout, RefusesWhatItDoesNotKnowAndSaysWhatItKnows) {
  const Toy toy;
  const std::string message =
      Refusal({{"model.layers.0.mlp.fancy.weight", DType::kF32, {1}, F32Data({1})}}, toy.Config());
  EXPECT_THAT(message, HasSubstr("no routed experts among 1 tensors"));
  EXPECT_THAT(message, HasSubstr("mlp.fancy.weight"));
  EXPECT_THAT(message, HasSubstr("switch_mlp"));
  EXPECT_THAT(
      Refusal({{"model.layers.0.mlp.experts.0.linear_fc1.weight", DType::kF32, {1}, F32Data({1})}},
              toy.Config()),
      HasSubstr("no expert naming that is known"));
  std::vector<TestTensor> quantised = PerExpert(toy);
  for (TestTensor& tensor : quantised) tensor.dtype = DType::kU32;
  EXPECT_THAT(Refusal(quantised, toy.Config()), HasSubstr("elements of type U32"));
}

TEST(ExpertLayout, ListsTensorsOfExpertsItDoesNotUse) {
  const Toy toy;
  std::vector<TestTensor> tensors = PerExpert(toy);
  tensors.push_back(
      {"model.layers.1.mlp.experts.0.gate_proj.lora_A", DType::kF32, {1}, F32Data({1})});
  const auto opened = Open(tensors, toy.Config());
  ASSERT_TRUE(opened->layout) << opened->layout.error().message();
  EXPECT_THAT(opened->layout->unknown_tensors(),
              testing::ElementsAre("model.layers.1.mlp.experts.0.gate_proj.lora_A"));
}

TEST(ExpertLayout, SharedExpertsAndRoutersAreTrunk) {
  const ExpertLayout layout;
  for (const char* name :
       {"model.layers.0.mlp.shared_experts.gate_proj.weight", "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight", "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.block_sparse_moe.gate.weight", "model.embed_tokens.weight",
        "model.layers.0.block_sparse_moe.router.layer.weight", "model.layers.0.mlp.router.weight",
        "model.layers.0.shared_mlp.input_linear.weight", "experts.0.gate_proj.weight", ""}) {
    EXPECT_FALSE(layout.IsExpertTensor(name)) << name;
  }
  EXPECT_TRUE(layout.IsExpertTensor("model.layers.0.mlp.experts.gate_up_proj_bias"));
  EXPECT_TRUE(layout.IsExpertTensor("mtp.layers.0.mlp.experts.7.down_proj.weight"));
}

TEST(A11, LayersOfMultiTokenPredictionAreFlagged) {
  Toy toy;
  toy.layer_count = 3;
  const std::vector<TestTensor> tensors = PerExpert(toy);
  toy.layer_count = 2;
  const auto beyond = Open(tensors, toy.Config());
  ASSERT_TRUE(beyond->layout) << beyond->layout.error().message();
  ASSERT_EQ(beyond->layout->layers().size(), 3U);
  EXPECT_FALSE(beyond->layout->layers()[1].is_mtp);
  EXPECT_TRUE(beyond->layout->layers()[2].is_mtp);

  std::vector<TestTensor> module = PerExpert(toy);
  Toy mtp = toy;
  mtp.layer_count = 1;
  mtp.prefix = "mtp.";
  for (const TestTensor& tensor : PerExpert(mtp)) module.push_back(tensor);
  const auto opened = Open(module, toy.Config());
  ASSERT_TRUE(opened->layout) << opened->layout.error().message();
  ASSERT_EQ(opened->layout->layers().size(), 3U);
  EXPECT_EQ(opened->layout->layers()[2].layer_index, 2U);
  EXPECT_TRUE(opened->layout->layers()[2].is_mtp);
  std::vector<float> values(40);
  ASSERT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 2, 1, Proj::kUp, false, values));
  EXPECT_EQ(values, toy.Matrix(0, 1, Proj::kUp));
}

// One layer, one expert, 2 x 3 elements of `dtype` in gate; up and down are zeros.
std::vector<TestTensor> SmallExpert(DType dtype, const std::string& gate) {
  const std::string zeros(6 * tensor::DTypeBytes(dtype), '\0');
  const std::string stem = "model.layers.0.mlp.experts.0.";
  return {{stem + "gate_proj.weight", dtype, {2, 3}, gate},
          {stem + "up_proj.weight", dtype, {2, 3}, zeros},
          {stem + "down_proj.weight", dtype, {3, 2}, zeros}};
}
ModelConfig SmallConfig() {
  Toy toy;
  toy.layer_count = 1;
  toy.expert_count = 1;
  toy.width = 2;
  toy.hidden = 3;
  return toy.Config();
}
std::string U16Data(const std::vector<uint16_t>& bits) {
  std::string out(bits.size() * 2, '\0');
  std::memcpy(out.data(), bits.data(), out.size());
  return out;
}

TEST(C07, NaNAndInfinityStopWithTensorAndIndex) {
  struct Case {
    DType dtype;
    std::string data;
    const char* what;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Case cases[] = {
      {DType::kBF16, U16Data({0, 0, 0, 0, 0x7f80, 0}), "infinite"},
      {DType::kBF16, U16Data({0, 0, 0, 0, 0x7fc0, 0}), "NaN"},
      {DType::kBF16, U16Data({0, 0, 0, 0, 0xff80, 0}), "infinite"},
      {DType::kF16, U16Data({0, 0, 0, 0, 0x7c00, 0}), "infinite"},
      {DType::kF16, U16Data({0, 0, 0, 0, 0xfe00, 0}), "NaN"},
      {DType::kF32, F32Data({0, 0, 0, 0, infinity, 0}), "infinite"},
      {DType::kF32, F32Data({0, 0, 0, 0, nan, 0}), "NaN"},
  };
  for (const Case& test : cases) {
    const auto opened = Open(SmallExpert(test.dtype, test.data), SmallConfig());
    ASSERT_TRUE(opened->layout);
    std::vector<float> values(6);
    const auto status =
        ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kGate, false, values);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message(),
                HasSubstr("tensor model.layers.0.mlp.experts.0.gate_proj.weight: element 4 (row 1, "
                          "column 1"));
    EXPECT_THAT(status.error().message(), HasSubstr(test.what));
    ASSERT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kGate, true, values));
    EXPECT_FALSE(std::isfinite(values[4]));
    EXPECT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kUp, false, values));
  }
}

TEST(C07, SubnormalAndHugeValuesArriveExactly) {
  const auto read = [](DType dtype, const std::string& data) {
    const auto opened = Open(SmallExpert(dtype, data), SmallConfig());
    std::vector<float> values(6);
    EXPECT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kGate, false, values));
    return values;
  };
  // bf16: the smallest subnormal is 2^-133, the largest value 255 x 2^120.
  EXPECT_THAT(
      read(DType::kBF16, U16Data({0x0001, 0x8001, 0x7f7f, 0xff7f, 0x0080, 0x8000})),
      testing::ElementsAre(std::ldexp(1.0F, -133), -std::ldexp(1.0F, -133), std::ldexp(255.0F, 120),
                           -std::ldexp(255.0F, 120), std::ldexp(1.0F, -126), -0.0F));
  // f16: the smallest subnormal is 2^-24, the largest value 65504.
  EXPECT_THAT(read(DType::kF16, U16Data({0x0001, 0x83ff, 0x7bff, 0xfbff, 0x0400, 0x3c01})),
              testing::ElementsAre(std::ldexp(1.0F, -24), -std::ldexp(1023.0F, -24), 65504.0F,
                                   -65504.0F, std::ldexp(1.0F, -14), 1.0009765625F));
}

TEST(C07, AnInfinityOfTheOtherProjectionIsNotOurs) {
  Toy toy;
  toy.layer_count = 1;
  std::vector<TestTensor> tensors = Stacked(toy, {.turned = true});
  // Element (column 0, row 0) of expert 0's up, which lies between the columns of gate.
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(tensors[0].data.data() + toy.width * sizeof(float), &infinity, sizeof(float));
  const auto opened = Open(tensors, toy.Config());
  std::vector<float> values(40);
  EXPECT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kGate, false, values));
  const auto status =
      ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kUp, false, values);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message(), HasSubstr("gate_up_proj: element 5 (row 0, column 0"));
}

TEST(C05, Fp8BlocksAtTheEdgesKeepTheirOwnScale) {
  // [130, 200] in blocks of 128 x 128: a 2 x 2 grid with partial blocks.
  const uint64_t rows = 130;
  const uint64_t cols = 200;
  const std::string ones(rows * cols, '\x38');  // 1.0 in E4M3: exponent 7, fraction 0
  const std::string scales = F32Data({2.0F, 3.0F, 5.0F, 7.0F});
  const std::string stem = "model.layers.0.mlp.experts.0.";
  std::vector<TestTensor> tensors;
  for (const char* word : {"gate_proj", "up_proj", "down_proj"}) {
    const bool is_down = std::string(word) == "down_proj";
    tensors.push_back({stem + word + ".weight", DType::kF8E4M3,
                       is_down ? tensor::Shape{cols, rows} : tensor::Shape{rows, cols}, ones});
    tensors.push_back({stem + word + ".weight_scale_inv", DType::kF32, {2, 2}, scales});
  }
  Toy toy;
  toy.layer_count = 1;
  toy.expert_count = 1;
  toy.width = rows;
  toy.hidden = cols;
  const auto opened = Open(tensors, toy.Config());
  ASSERT_TRUE(opened->layout) << opened->layout.error().message();
  EXPECT_EQ(opened->layout->encoding(), ExpertEncoding::kFp8Block);
  std::vector<float> values(rows * cols);
  ASSERT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kGate, false, values));
  EXPECT_EQ(values[0], 2.0F);
  EXPECT_EQ(values[127], 2.0F);
  EXPECT_EQ(values[128], 3.0F);
  EXPECT_EQ(values[199], 3.0F);
  EXPECT_EQ(values[128 * cols], 5.0F);
  EXPECT_EQ(values[129 * cols + 199], 7.0F);

  tensors[1].shape = {1, 1};
  tensors[1].data = F32Data({2.0F});
  EXPECT_THAT(Refusal(tensors, toy.Config()), HasSubstr("gate_proj.weight_scale_inv"));
  tensors.erase(tensors.begin() + 1);
  EXPECT_THAT(Refusal(tensors, toy.Config()), HasSubstr("gate_proj.weight_scale_inv: missing"));
}

TEST(ExpertLayout, ReadsMxfp4BlocksWithInterleavedRows) {
  // One expert, I = 32, H = 32: gate_up [1, 64, 1, 16], down [1, 32, 1, 16].
  std::string codes;
  std::string scales;
  for (int row = 0; row < 64; ++row) {
    // Even rows (gate): codes 1 and 2 (0.5 and 1); odd rows (up): 7 and 15 (6 and -6).
    codes += std::string(16, row % 2 == 0 ? '\x21' : '\xf7');
    scales += static_cast<char>(row < 2 ? 128 : 127);  // 2^1 in the first pair of rows, else 2^0
  }
  const std::string stem = "model.layers.0.mlp.experts.";
  const std::vector<TestTensor> tensors = {
      {stem + "gate_up_proj_blocks", DType::kU8, {1, 64, 1, 16}, codes},
      {stem + "gate_up_proj_scales", DType::kU8, {1, 64, 1}, scales},
      {stem + "down_proj_blocks", DType::kU8, {1, 32, 1, 16}, codes.substr(0, 512)},
      {stem + "down_proj_scales", DType::kU8, {1, 32, 1}, std::string(32, '\0')}};
  Toy toy;
  toy.model_type = "gpt_oss";
  toy.layer_count = 1;
  toy.expert_count = 1;
  toy.width = 32;
  toy.hidden = 32;
  const auto opened = Open(tensors, toy.Config());
  ASSERT_TRUE(opened->layout) << opened->layout.error().message();
  EXPECT_EQ(opened->layout->encoding(), ExpertEncoding::kMxfp4);
  std::vector<float> values(32 * 32);
  ASSERT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kGate, false, values));
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[1], 2.0F);
  EXPECT_EQ(values[32], 0.5F);
  EXPECT_EQ(values[32 * 32 - 1], 1.0F);
  ASSERT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kUp, false, values));
  EXPECT_EQ(values[0], 12.0F);
  EXPECT_EQ(values[1], -12.0F);
  EXPECT_EQ(values[33], -6.0F);
  ASSERT_TRUE(ReadExpertMatrix(opened->files, *opened->layout, 0, 0, Proj::kDown, false, values));
  EXPECT_EQ(values[1], std::ldexp(1.0F, -127));  // a scale byte of 0 is 2^-127
  EXPECT_EQ(values[32], std::ldexp(6.0F, -127));

  std::vector<TestTensor> no_scales = tensors;
  no_scales.erase(no_scales.begin() + 1);
  EXPECT_THAT(Refusal(no_scales, toy.Config()), HasSubstr("gate_up_proj_scales: missing"));
}

TEST(ExpertLayout, RecognisesNvfp4AndDoesNotReadItAsFloats) {
  const std::string folder = ReferenceFolder("nvfp4");
  if (folder.empty()) GTEST_SKIP() << SMOE_SHARED_DIR << "/reference/nvfp4 is absent";
  for (const char* name : {"mixed-modelopt", "mixed-compressed-tensors", "a64x128-modelopt",
                           "b16x32-compressed-tensors"}) {
    const std::string path = folder + "/" + name;
    const auto files = TensorFiles::Open(path);
    ASSERT_TRUE(files) << files.error().message();
    const auto text = io::ReadWholeFile(path + "/config.json", 1 << 20);
    const auto config = ParseModelConfig(*Json::Parse(*text, path), path);
    ASSERT_TRUE(config) << config.error().message();
    const auto layout = ExpertLayout::Detect(*files, *config);
    ASSERT_TRUE(layout) << layout.error().message();
    EXPECT_EQ(layout->encoding(), ExpertEncoding::kNvfp4);
    EXPECT_TRUE(layout->unknown_tensors().empty());
    const MatrixSlice slice = layout->Slice(layout->layers()[0].layer_index, 0, Proj::kGate);
    std::vector<float> values(size_t{slice.rows} * slice.cols);
    const auto status = ReadExpertMatrix(*files, *layout, layout->layers()[0].layer_index, 0,
                                         Proj::kGate, false, values);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace smoe::checkpoint
