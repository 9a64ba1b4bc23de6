// Models through the real path: store, read queue, cache of few slots, local backend.
#include "io/fake_read_queue.h"
#include "model/checkpoint_model_for_test.h"
#include "model/streamed_model_for_test.h"
#include "store/records/record.h"
#include "store/records/writer.h"

namespace smoe::model {
namespace {

using experts::Arithmetic;

constexpr float kTolerance = 2e-4f;  // of the largest logit
constexpr size_t kChunkMax = 256;

std::vector<float> AllLogits(StreamedModel& streamed, std::span<const uint32_t> ids, size_t chunk,
                             StepTaps* taps = nullptr) {
  KvSequence kv = streamed.kv->NewSequence();
  std::vector<float> logits;
  for (size_t first = 0; first < ids.size(); first += std::min(chunk, ids.size() - first)) {
    const SequenceRows rows = {&kv, ids.subspan(first, std::min(chunk, ids.size() - first)),
                               SequenceRows::Logits::kAll};
    const auto result = streamed.model->Step({&rows, 1}, taps);
    EXPECT_TRUE(result.has_value()) << result.error().message();
    if (!result.has_value()) return {};
    for (const auto& failure : result->failures) ADD_FAILURE() << failure.error.message();
    logits.insert(logits.end(), result->logits.begin(), result->logits.end());
  }
  return logits;
}

void ExpectGolden(StreamedModel& streamed, const std::string& golden_path) {
  const auto golden = checkpoint::TensorFiles::Open(golden_path);
  ASSERT_TRUE(golden.has_value()) << golden.error().message();
  for (const std::string prompt : {"p0", "p1", "p2"}) {
    StepTaps taps;
    taps.want_router = true;
    const std::vector<float> logits =
        AllLogits(streamed, ReadIds(*golden, prompt + ".input_ids"), kChunkMax, &taps);
    const bool is_short = golden->Find(prompt + ".logits_last16") != nullptr;
    const std::vector<float> expected =
        ReadFloats(*golden, prompt + (is_short ? ".logits_last16" : ".logits"));
    ASSERT_GE(logits.size(), expected.size());
    EXPECT_LT(LargestDifference(std::span(logits).last(expected.size()), expected),
              kTolerance * LargestMagnitude(expected))
        << prompt;
    for (size_t layer = 0; layer < taps.layers.size(); ++layer) {
      const std::string stem = fmt::format("{}.router.L{:02}", prompt, layer);
      if (golden->Find(stem + ".ids") == nullptr) continue;
      EXPECT_EQ(taps.layers[layer].router_ids, ReadIds(*golden, stem + ".ids")) << stem;
      EXPECT_LT(LargestDifference(taps.layers[layer].router_weights,
                                  ReadFloats(*golden, stem + ".weights")),
                2e-5f)
          << stem;
    }
  }
}

TEST(StreamedModel, VaultsGiveTheLogitsOfTheirDequantisedGoldens) {
  const std::string list_path = SharedPath("vaults/vaults.json");
  if (!std::filesystem::exists(list_path)) GTEST_SKIP() << "no reference data: " << list_path;
  const auto list = Json::Parse(ReadText(list_path), list_path);
  ASSERT_TRUE(list.has_value()) << list.error().message();
  size_t vault_count = 0;
  for (const auto& [name, vault] : *list->Find("vaults")->AsObject()) {
    const Json* const scout = vault.Find("scout");
    const Json* const golden = vault.Find("golden");
    const Json* const checkpoint = vault.Find("checkpoint");
    // Files that are another file of the list, byte for byte, do not lie there.
    if (checkpoint == nullptr || vault.Find("identical_to") != nullptr) continue;
    const std::string base = *checkpoint->AsString();
    const bool runs = base.starts_with("qwen") || base.starts_with("olmoe");
    if (scout == nullptr || golden == nullptr || !runs || base.starts_with("qwen3_next")) continue;
    SCOPED_TRACE(name);
    store::ModelFilesOptions options;
    options.trunk = SharedPath("vaults/" + *scout->AsString());
    options.config = SharedPath("checkpoints/" + base);
    auto streamed = OpenStreamed(SharedPath("vaults/" + *vault.Find("file")->AsString()), options,
                                 {.slot_count = 5});
    ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
    ExpectGolden(**streamed, SharedPath("vaults/" + *golden->AsString() + ".safetensors"));
    ++vault_count;
  }
  EXPECT_GT(vault_count, 20u);
}

TEST(StreamedModel, FoldersGiveTheLogitsOfTheirGoldens) {
  if (!std::filesystem::exists(SharedPath("goldens"))) {
    GTEST_SKIP() << "no reference data: " << SharedPath("goldens");
  }
  for (const char* name :
       {"qwen3_moe_sharded", "qwen3_moe_odd", "qwen3_moe_dense", "qwen3_moe_tied", "qwen3_moe_f16",
        "qwen3_moe_f32", "qwen2_moe", "olmoe", "mixtral"}) {
    for (const bool leaves_embedding : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, embedding on the drive: {}", name, leaves_embedding));
      auto streamed =
          OpenStreamed(SharedPath(std::string("checkpoints/") + name), {},
                       {.trunk = {.leaves_embedding = leaves_embedding}, .slot_count = 4});
      ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
      ExpectGolden(**streamed, SharedPath(std::string("goldens/") + name + ".safetensors"));
    }
  }
}

// Loading the whole matrix would find it; a row that is read when its token comes fails that one.
TEST(StreamedModel, AnEmbeddingThatIsNotFiniteFailsTheSequenceThatWantsIt) {
  EditableFolder folder(DeepseekFolder());
  checkpoint::TestTensor& embedding = folder.Tensor("model.embed_tokens.weight");
  const size_t row_bytes = embedding.data.size() / embedding.shape[0];
  std::fill_n(embedding.data.begin() + static_cast<std::ptrdiff_t>(3 * row_bytes), 2, '\xff');
  const auto written = folder.Write();
  EXPECT_FALSE(OpenStreamed(written->path(), {}, {}).has_value());
  auto streamed = OpenStreamed(written->path(), {}, {.trunk = {.leaves_embedding = true}});
  ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
  KvSequence good_kv = (*streamed)->kv->NewSequence();
  KvSequence bad_kv = (*streamed)->kv->NewSequence();
  const std::vector<uint32_t> good = {1, 2, 4};
  const std::vector<uint32_t> bad = {1, 3, 4};
  const SequenceRows rows[] = {{&bad_kv, bad, SequenceRows::Logits::kLast},
                               {&good_kv, good, SequenceRows::Logits::kLast}};
  const auto result = (*streamed)->model->Step(rows, nullptr);
  ASSERT_TRUE(result.has_value()) << result.error().message();
  ASSERT_EQ(result->failures.size(), 1u);
  EXPECT_EQ(result->failures[0].sequence, 0u);
  EXPECT_NE(result->failures[0].error.message().find("tensor model.embed_tokens.weight: element"),
            std::string::npos)
      << result->failures[0].error.message();
  const std::vector<float> beside(result->logits.end() - (*streamed)->model->config().vocab_size,
                                  result->logits.end());
  auto whole = OpenStreamed(DeepseekFolder(), {}, {});
  ASSERT_TRUE(whole.has_value());
  const std::vector<float> alone = AllLogits(**whole, good, kChunkMax);
  EXPECT_TRUE(std::equal(beside.begin(), beside.end(),
                         alone.end() - (*streamed)->model->config().vocab_size));
}

TEST(StreamedModel, DeepseekGivesTheLogitsOfItsGolden) {
  auto streamed = OpenStreamed(DeepseekFolder(), {}, {});
  ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
  ExpectGolden(**streamed, DeepseekFolder() + "/golden.safetensors");
}

// Its goldens have names of their own: NAME.logits are the last rows, NAME.router_ids is
// [layers][tokens][top_k].
TEST(StreamedModel, TheBundledModelGivesTheLogitsOfItsGoldens) {
  const std::string folder = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
  auto streamed = OpenStreamed(folder, {}, {});
  ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
  const auto golden = checkpoint::TensorFiles::Open(folder + "/goldens.safetensors");
  ASSERT_TRUE(golden.has_value()) << golden.error().message();
  for (const std::string name : {"chat-1", "chat-2", "text-2"}) {
    SCOPED_TRACE(name);
    StepTaps taps;
    taps.want_router = true;
    const std::vector<float> logits =
        AllLogits(**streamed, ReadIds(*golden, name + ".input_ids"), kChunkMax, &taps);
    const std::vector<float> expected = ReadFloats(*golden, name + ".logits");
    ASSERT_GE(logits.size(), expected.size());
    EXPECT_LT(LargestDifference(std::span(logits).last(expected.size()), expected),
              kTolerance * LargestMagnitude(expected));
    std::vector<uint32_t> router_ids;
    for (const StepTaps::Layer& layer : taps.layers) {
      router_ids.insert(router_ids.end(), layer.router_ids.begin(), layer.router_ids.end());
    }
    std::vector<uint32_t> expected_ids = ReadIds(*golden, name + ".router_ids");
    for (auto row = expected_ids.begin(); row != expected_ids.end(); row += 4) {
      std::sort(row, row + 4);
    }
    EXPECT_EQ(router_ids, expected_ids);
  }
}

TEST(StreamedModel, RecordStoresGiveTheLogitsOfTheirGoldens) {
  if (!std::filesystem::exists(SharedPath("nvfp4"))) {
    GTEST_SKIP() << "no reference data: " << SharedPath("nvfp4");
  }
  for (const std::string name : {"a64x128", "b16x32"}) {
    SCOPED_TRACE(name);
    auto streamed =
        OpenStreamed(SharedPath("nvfp4/" + name + "-store"),
                     {.trunk = SharedPath("nvfp4/" + name + "-modelopt")}, {.slot_count = 3});
    ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
    ExpectGolden(**streamed, SharedPath("nvfp4/goldens/" + name + "-modelopt.safetensors"));
  }
}

// One projection of an expert, moved from a checkpoint's tensors.
store::records::ProjParts PartsOf(EditableFolder& folder, const std::string& stem) {
  const bool is_packed = folder.Has(stem + ".weight_packed");
  store::records::ProjParts parts;
  parts.packed = AsBytes(folder.Tensor(stem + (is_packed ? ".weight_packed" : ".weight")).data);
  parts.scale = AsBytes(folder.Tensor(stem + ".weight_scale").data);
  const std::string global = stem + (is_packed ? ".weight_global_scale" : ".weight_scale_2");
  const auto stored = LoadStruct<float>(AsBytes(folder.Tensor(global).data));
  parts.scale2 = is_packed ? 1.0f / stored : stored;
  return parts;
}

// A record store of an NVFP4 checkpoint whose other tensors, quantised as they are, lie in it.
void WriteStore(EditableFolder& source, const std::string& path) {
  namespace records = store::records;
  records::ExpertIndex index;
  index.num_moe_layers = 2;
  index.num_experts = 4;
  index.inter = 64;
  index.hidden = 64;
  index.moe_layer_to_model_layer = {0, 1};
  auto writer = records::RecordWriter::Create(path, index, {});
  ASSERT_TRUE(writer.has_value()) << writer.error().message();
  const records::ExpertRecordSpec& spec = (*writer)->spec();
  std::vector<std::byte> record(spec.raw_bytes);
  for (uint32_t layer = 0; layer < index.num_moe_layers; ++layer) {
    for (uint32_t expert = 0; expert < index.num_experts; ++expert) {
      records::ExpertParts parts;
      const std::string stem = fmt::format("model.layers.{}.mlp.experts.{}.", layer, expert);
      parts.projs[0] = PartsOf(source, stem + "gate_proj");
      parts.projs[1] = PartsOf(source, stem + "up_proj");
      parts.projs[2] = PartsOf(source, stem + "down_proj");
      const Status packed = records::PackRecord(spec, {layer, expert}, parts,
                                                records::PartsOrder::kCheckpoint, record);
      ASSERT_TRUE(packed.has_value()) << packed.error().message();
      ASSERT_TRUE((*writer)->WriteRecord({layer, expert}, record).has_value());
    }
  }
  std::erase_if(source.tensors, [](const auto& tensor) {
    return tensor.name.find(".experts.") != std::string::npos;
  });
  const std::string trunk = checkpoint::MakeSafetensors(source.tensors);
  const std::string config = source.config.Dump(2);
  ASSERT_TRUE((*writer)->AddFile(records::kPartTrunk, "trunk.safetensors", AsBytes(trunk)));
  ASSERT_TRUE((*writer)->AddFile("config.json", "config.json", AsBytes(config)));
  ASSERT_TRUE((*writer)->Finish().has_value());
}

TEST(StreamedModel, RecordStoresWithAnNvfp4TrunkGiveTheLogitsOfTheirGoldens) {
  if (!std::filesystem::exists(SharedPath("nvfp4"))) {
    GTEST_SKIP() << "no reference data: " << SharedPath("nvfp4");
  }
  for (const std::string name : {"mixed-modelopt", "mixed-compressed-tensors"}) {
    SCOPED_TRACE(name);
    const checkpoint::TestFolder target;
    EditableFolder source(SharedPath("nvfp4/" + name));
    ASSERT_NO_FATAL_FAILURE(WriteStore(source, target.Path("store")));
    auto streamed = OpenStreamed(target.Path("store"), {}, {.slot_count = 4});
    ASSERT_TRUE(streamed.has_value()) << streamed.error().message();
    ExpectGolden(**streamed, SharedPath("nvfp4/goldens/" + name + ".safetensors"));
  }
}

// A prompt of several hundred tokens, then 200 more, whatever the memory, the reads, the
// threads and the chunk; in both arithmetics.
TEST(StreamedModel, StreamedRunsHaveTheBitsOfResidentRuns) {
  const std::string path = SharedPath("vaults/qwen3_moe.smoe");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference data: " << path;
  store::ModelFilesOptions options;
  options.trunk = SharedPath("vaults/qwen3_moe.scout.safetensors");
  options.config = SharedPath("checkpoints/qwen3_moe");
  std::vector<uint32_t> ids(300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i * i * 31 + 7) % 384;
  const auto shuffled = [](uint64_t seed) {
    return [seed]() -> Result<std::unique_ptr<io::ReadQueue>> {
      return io::MakeFakeReadQueue({.seed = seed});
    };
  };
  const auto run = [&](const StreamSetup& setup, size_t chunk) {
    auto streamed = OpenStreamed(path, options, setup);
    EXPECT_TRUE(streamed.has_value()) << streamed.error().message();
    std::vector<float> logits = AllLogits(**streamed, std::span(ids).first(100), chunk);
    const std::vector<float> tail = AllLogits(**streamed, ids, std::min<size_t>(chunk, 256));
    logits.insert(logits.end(), tail.begin(), tail.end());
    return logits;
  };
  for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kInt8}) {
    StreamSetup setup = {.arithmetic = arithmetic, .slot_count = 0, .thread_count = 1};
    const std::vector<float> resident = run(setup, 256);
    for (const uint32_t slots : {3u, 12u, 24u}) {
      setup.slot_count = slots;
      setup.thread_count = slots == 12 ? 1 : 2;
      setup.make_queue = slots == 12 ? StreamSetup().make_queue : shuffled(slots);
      EXPECT_EQ(run(setup, slots == 3 ? 7 : 64), resident)
          << ArithmeticName(arithmetic) << " slots " << slots;
    }
  }
}

}  // namespace
}  // namespace smoe::model
