#include "convert/packer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>

#include "base/bytes.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"
#include "convert/files_for_test.h"
#include "convert/pack_plan.h"
#include "store/record_model.h"
#include "store/records/record.h"
#include "store/records/record_folder.h"
#include "store/records/verify.h"
#include "store/verify_model.h"

namespace smoe::convert {
namespace {

namespace fs = std::filesystem;
namespace records = store::records;

NoProgress g_no_progress;

PackReport MustPack(const std::string& checkpoint, const std::string& out,
                    const PackOptions& options = {}) {
  auto report = Pack(checkpoint, out, options, g_no_progress);
  EXPECT_TRUE(report) << report.error().message();
  return report ? std::move(*report) : PackReport();
}

Error MustFail(const std::string& checkpoint, const std::string& out,
               const PackOptions& options = {}) {
  auto report = Pack(checkpoint, out, options, g_no_progress);
  EXPECT_FALSE(report);
  return report ? Error(ErrorCode::kIo, "no error") : report.error();
}

// Every file of a folder with its content.
std::map<std::string, std::string> FilesOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = ReadText(entry.path().string());
  }
  return files;
}

records::RecordFolder MustOpen(const std::string& path) {
  auto folder = records::OpenRecordFolder(path);
  EXPECT_TRUE(folder) << folder.error().message();
  return folder ? std::move(*folder) : records::RecordFolder();
}

#define SKIP_WITHOUT_REFERENCE() \
  if (!fs::exists(Reference("nvfp4"))) GTEST_SKIP() << "no reference data at " << Reference("nvfp4")

TEST(Pack, ReproducesTheReferenceStoresOfModelOptCheckpoints) {
  SKIP_WITHOUT_REFERENCE();
  int compared = 0;
  for (const char* model : {"a64x128", "b16x32"}) {
    const TestFolder folder;
    const PackReport report =
        MustPack(Reference(fmt::format("nvfp4/{}-modelopt", model)), folder.Path("s"));
    EXPECT_TRUE(report.moves_bytes);
    EXPECT_FALSE(report.errors);
    for (const auto& entry :
         fs::directory_iterator(Reference(fmt::format("nvfp4/{}-store", model)))) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with(".xpr")) continue;
      EXPECT_TRUE(ReadText(folder.Path("s/" + name)) == ReadText(entry.path().string())) << name;
      ++compared;
    }
    // Twelve keys of the format, in its order, to the byte; then ours.
    std::string theirs = ReadText(Reference(fmt::format("nvfp4/{}-store/manifest.json", model)));
    theirs.resize(theirs.find_last_not_of("}\n ") + 1);
    EXPECT_TRUE(ReadText(folder.Path("s/manifest.json")).starts_with(theirs + ","));
  }
  EXPECT_EQ(compared, 5);
}

// Bytes of a tensor, found by name.
std::vector<std::byte> TensorBytes(const checkpoint::TensorFiles& files, const std::string& name) {
  const checkpoint::TensorInfo* info = files.Find(name);
  EXPECT_NE(info, nullptr) << name;
  std::vector<std::byte> bytes(info == nullptr ? 0 : info->size);
  EXPECT_TRUE(info == nullptr || files.Read(*info, 0, bytes));
  return bytes;
}

// column-major = the checkpoint's rows.
void ExpectTransposed(Bytes stored, const std::vector<std::byte>& rows, uint64_t row_count) {
  ASSERT_EQ(stored.size(), rows.size());
  const uint64_t cols = rows.size() / row_count;
  for (uint64_t row = 0; row < row_count; ++row) {
    for (uint64_t col = 0; col < cols; ++col) {
      ASSERT_EQ(stored[col * row_count + row], rows[row * cols + col]) << row << " " << col;
    }
  }
}

TEST(Pack, MovesCompressedTensorsCheckpointsTransposedWithInverseScales) {
  SKIP_WITHOUT_REFERENCE();
  for (const char* model : {"a64x128", "b16x32", "mixed"}) {
    SCOPED_TRACE(model);
    const TestFolder temp;
    const std::string source = Reference(fmt::format("nvfp4/{}-compressed-tensors", model));
    MustPack(source, temp.Path("s"));
    const records::RecordFolder folder = MustOpen(temp.Path("s"));
    const auto files = checkpoint::TensorFiles::Open(source).value();
    std::vector<std::byte> record(folder.spec.raw_bytes);
    for (uint64_t id = 0; id < folder.record_count(); ++id) {
      const auto key = records::ExpertRecordId{id}.Key(folder.layout.num_experts);
      ASSERT_TRUE(folder.files[key.layer].ReadAt(folder.layout.RecordOffset(key.expert), record));
      ASSERT_TRUE(records::CheckRecord(folder, key, record));
      const auto parts = records::UnpackRecord(folder.spec, key, record).value();
      for (const records::Proj proj : records::kProjs) {
        const std::string stem = fmt::format("model.layers.{}.mlp.experts.{}.{}_proj.",
                                             folder.index.moe_layer_to_model_layer[key.layer],
                                             key.expert, records::ProjName(proj));
        const records::ProjParts& part = parts.projs[records::ProjIndex(proj)];
        const uint64_t rows = folder.spec.Place(proj).n;
        ExpectTransposed(part.packed, TensorBytes(files, stem + "weight_packed"), rows);
        ExpectTransposed(part.scale, TensorBytes(files, stem + "weight_scale"), rows);
        const auto global = LoadStruct<float>(TensorBytes(files, stem + "weight_global_scale"));
        const auto input = LoadStruct<float>(TensorBytes(files, stem + "input_global_scale"));
        ASSERT_EQ(part.scale2, 1.0F / global);
        ASSERT_TRUE(part.input_scale);
        ASSERT_EQ(*part.input_scale, 1.0F / input);
      }
    }
  }
}

TEST(Pack, MakesOneFolderTheWholeModel) {
  const TestFolder folder;
  const PackReport report = MustPack(TinyMoe(), folder.Path("s"));
  EXPECT_EQ(report.expert_count, 64U);
  EXPECT_FALSE(fs::exists(folder.Path("s/pack.journal")));
  uint64_t bytes = 0;
  for (const auto& [name, content] : FilesOf(folder.Path("s"))) bytes += content.size();
  EXPECT_EQ(report.out_bytes, bytes);
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja"}) {
    EXPECT_TRUE(ReadText(folder.Path(std::string("s/") + name)) == ReadText(TinyMoe() + "/" + name))
        << name;
  }
  const records::RecordFolder store = MustOpen(folder.Path("s"));
  EXPECT_TRUE(store.index.says_orientation);
  EXPECT_EQ(store.index.files.size(), 6U);
  EXPECT_EQ(*store.index.source.Find("quantiser")->AsString(), "mse");
  store::vault::VerifyReport verified;
  ASSERT_TRUE(records::VerifyRecords(store, {}, &verified));
  EXPECT_TRUE(verified.problems.empty());
  EXPECT_TRUE(verified.warnings.empty());
  const auto model = store::OpenRecordModel(folder.Path("s"), {});
  ASSERT_TRUE(model) << model.error().message();
  const auto source = checkpoint::TensorFiles::Open(TinyMoe()).value();
  EXPECT_GT(model->trunk.tensors().size(), 20U);
  for (const auto& [name, info] : model->trunk.tensors()) {
    EXPECT_TRUE(TensorBytes(model->trunk, name) == TensorBytes(source, name)) << name;
  }
}

// Nothing of an attention that is NVFP4 itself is touched.
TEST(Pack, TakesQuantisedTrunkTensorsAsTheyAre) {
  SKIP_WITHOUT_REFERENCE();
  for (const char* model : {"mixed-modelopt", "mixed-compressed-tensors"}) {
    const TestFolder folder;
    const std::string path = Reference(std::string("nvfp4/") + model);
    MustPack(path, folder.Path("s"));
    const auto source = checkpoint::TensorFiles::Open(path).value();
    const auto trunk = checkpoint::TensorFiles::Open(folder.Path("s/trunk.safetensors")).value();
    size_t attention_count = 0;
    for (const auto& [name, info] : source.tensors()) {
      if (name.find(".experts.") != std::string::npos) continue;
      const checkpoint::TensorInfo* stored = trunk.Find(name);
      ASSERT_NE(stored, nullptr) << name;
      EXPECT_EQ(stored->dtype, info.dtype);
      EXPECT_TRUE(TensorBytes(trunk, name) == TensorBytes(source, name)) << name;
      if (info.dtype == tensor::DType::kU8) ++attention_count;
    }
    EXPECT_EQ(attention_count, 8U);
  }
}

TEST(Pack, GivesTheSameBytesWhateverTheThreadsAndMeasuresItsError) {
  const TestFolder folder;
  PackOptions options;
  options.threads = 1;
  const PackReport mse = MustPack(TinyMoe(), folder.Path("a"), options);
  options.threads = 5;
  MustPack(TinyMoe(), folder.Path("b"), options);
  EXPECT_TRUE(FilesOf(folder.Path("a")) == FilesOf(folder.Path("b")));
  options.quantiser = tensor::Nvfp4Quantiser::kAmax;
  const PackReport amax = MustPack(TinyMoe(), folder.Path("c"), options);
  ASSERT_TRUE(mse.errors && amax.errors);
  for (size_t i = 0; i < mse.errors->size(); ++i) {
    // 64 experts of 128 x 256.
    EXPECT_EQ((*mse.errors)[i].weight_count, uint64_t{64} * 128 * 256);
    EXPECT_NEAR(1 - (*mse.errors)[i].Rmse() / (*amax.errors)[i].Rmse(), 0.145, 0.01);
  }
}

TEST(Pack, QuantisesEveryLayoutThatCanBeRead) {
  SKIP_WITHOUT_REFERENCE();
  for (const char* name : {"mixtral", "gpt_oss_bf16", "granitemoe", "qwen3_5_moe", "qwen3_moe_f32",
                           "deepseek_v3_fp8", "gpt_oss_mxfp4", "qwen3_moe_sharded"}) {
    SCOPED_TRACE(name);
    const TestFolder folder;
    const PackReport report =
        MustPack(Reference(std::string("checkpoints/") + name), folder.Path("s"));
    const records::RecordFolder store = MustOpen(folder.Path("s"));
    store::vault::VerifyReport verified;
    ASSERT_TRUE(records::VerifyRecords(store, {}, &verified));
    EXPECT_TRUE(verified.problems.empty());
    ASSERT_TRUE(report.errors);
    EXPECT_GT((*report.errors)[0].SnrDb(), 19);
  }
}

TEST(Pack, WritesNothingInADryRunAndRefusesTheSame) {
  const TestFolder folder;
  PackOptions options;
  options.dry_run = true;
  const PackReport report = MustPack(TinyMoe(), folder.Path("s"), options);
  EXPECT_FALSE(fs::exists(folder.Path("s")));
  options.dry_run = false;
  const uint64_t real_bytes = MustPack(TinyMoe(), folder.Path("s"), options).out_bytes;
  EXPECT_NEAR(static_cast<double>(report.out_bytes), static_cast<double>(real_bytes), 20000);
  options.dry_run = true;
  EXPECT_EQ(MustFail(TinyMoe(), folder.Path("s"), options).code(), ErrorCode::kInvalid);
}

TEST(Pack, ReplacesWhatIsThereOnlyWhenForced) {
  const TestFolder folder;
  MustPack(TinyMoe(), folder.Path("s"));
  const auto before = FilesOf(folder.Path("s"));
  for (const bool resume : {false, true}) {
    PackOptions options;
    options.resume = resume;
    const Error error = MustFail(TinyMoe(), folder.Path("s"), options);
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_NE(error.message().find("--force replaces"), std::string::npos) << error.message();
    EXPECT_TRUE(FilesOf(folder.Path("s")) == before);
  }
  PackOptions options;
  options.force = true;
  options.threads = 5000;  // refused before anything is removed
  EXPECT_NE(MustFail(TinyMoe(), folder.Path("s"), options).message().find("--threads: 5000"),
            std::string::npos);
  EXPECT_TRUE(FilesOf(folder.Path("s")) == before);
  options.threads = 0;
  MustPack(TinyMoe(), folder.Path("s"), options);
  EXPECT_TRUE(FilesOf(folder.Path("s")) == before);
  // A file of another program with a name that is needed.
  fs::create_directory(folder.Path("t"));
  WriteText(folder.Path("t/config.json"), "precious");
  EXPECT_NE(MustFail(TinyMoe(), folder.Path("t")).message().find("config.json: exists"),
            std::string::npos);
  EXPECT_EQ(ReadText(folder.Path("t/config.json")), "precious");
}

TEST(Pack, NeverWritesIntoItsCheckpoint) {
  const TestFolder folder;
  const std::string source = folder.Path("model");
  fs::copy(TinyMoe(), source);
  const auto before = FilesOf(source);
  PackOptions options;
  options.force = true;
  for (const std::string& out : {source, source + "/../model/."}) {
    const Error error = MustFail(source, out, options);
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_NE(error.message().find("checkpoint's own folder"), std::string::npos);
  }
  fs::create_directory(folder.Path("s"));
  fs::create_symlink(source + "/model.safetensors", folder.Path("s/trunk.safetensors"));
  EXPECT_NE(MustFail(source, folder.Path("s"), options).message().find("which is being read"),
            std::string::npos);
  EXPECT_TRUE(FilesOf(source) == before);
  // Where the store that replaces another is written: a download's folder may have that name.
  MustPack(source, folder.Path("t"));
  fs::rename(source, folder.Path("t.partial"));
  for (const bool resume : {false, true}) {
    options.resume = resume;
    const Error error = MustFail(folder.Path("t.partial"), folder.Path("t"), options);
    EXPECT_NE(error.message().find("t.partial: holds "), std::string::npos) << error.message();
  }
  EXPECT_TRUE(FilesOf(folder.Path("t.partial")) == before);
}

TEST(Pack, PacksTheLayersThatAreListed) {
  const TestFolder folder;
  PackOptions options;
  options.layers = "1,3";
  const PackReport report = MustPack(TinyMoe(), folder.Path("s"), options);
  EXPECT_TRUE(report.is_partial);
  EXPECT_EQ(report.layer_count, 2U);
  EXPECT_EQ(MustOpen(folder.Path("s")).index.moe_layer_to_model_layer,
            (std::vector<uint32_t>{1, 3}));
  options.layers = "2-9";
  EXPECT_NE(MustFail(TinyMoe(), folder.Path("t"), options).message().find("layer 4 has no experts"),
            std::string::npos);
}

TEST(Pack, APartialStoreIsSaidToBeOne) {
  const TestFolder folder;
  PackOptions options;
  options.layers = "1";
  MustPack(TinyMoe(), folder.Path("s"), options);
  const auto files = store::OpenModelFiles(folder.Path("s"), {});
  ASSERT_FALSE(files);
  EXPECT_EQ(files.error().code(), ErrorCode::kInvalid);
  EXPECT_NE(files.error().message().find("a partial store cannot run: the config wants experts in "
                                         "layers 0, 2, 3, the store has none"),
            std::string::npos)
      << files.error().message();
  const auto report = store::VerifyModel(folder.Path("s"), {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(report->ok());
  const auto is_said = [](const std::string& text) { return text.starts_with("a partial store"); };
  EXPECT_TRUE(std::any_of(report->warnings.begin(), report->warnings.end(), is_said));
}

TEST(Pack, AStoreOfOthersSaysWhichOptionIsOfAnotherModel) {
  SKIP_WITHOUT_REFERENCE();
  const std::string store = Reference("nvfp4/a64x128-store");
  const auto other = store::OpenModelFiles(store, {.trunk = TinyMoe()});
  ASSERT_FALSE(other);
  EXPECT_TRUE(other.error().message().starts_with(TinyMoe() + "/config.json: hidden_size is 256"))
      << other.error().message();
  const auto missing = store::OpenModelFiles(store, {.trunk = "/no/such"});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kInvalid);
  EXPECT_EQ(missing.error().message(), "--trunk /no/such: no such file or folder");
}

TEST(ParseLayerList, TakesNumbersAndRangesAndNothingElse) {
  EXPECT_EQ(ParseLayerList("").value(), std::vector<uint32_t>());
  EXPECT_EQ(ParseLayerList("7,1-3,2").value(), (std::vector<uint32_t>{1, 2, 3, 7}));
  for (const char* text : {",", "1,", "-", "1-", "3-1", "a", "1 2", "1--2", "4294967296", "9999",
                           "0-4294967295", "+1"}) {
    EXPECT_FALSE(ParseLayerList(text)) << text;
  }
}

// Case E07: kill -9 at many points, then resume.
TEST(PackResume, EndsWithTheBytesOfAnUninterruptedRunAfterAKillAnywhere) {
  const TestFolder folder;
  std::atomic<int> step_count{0};
  CallbackProgress counting([&] { ++step_count; });
  ASSERT_TRUE(Pack(TinyMoe(), folder.Path("whole"), {}, counting));
  const auto whole = FilesOf(folder.Path("whole"));
  uint64_t resumed_max = 0;
  for (int kill_at = 1; kill_at <= step_count; kill_at += 1 + step_count / 12) {
    const std::string out = folder.Path(fmt::format("{}", kill_at));
    const int status = InChild([&] {
      std::atomic<int> left{kill_at};
      CallbackProgress killer([&] {
        if (--left == 0) ::raise(SIGKILL);
      });
      return Pack(TinyMoe(), out, {}, killer) ? 0 : 1;
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << kill_at;
    ASSERT_FALSE(records::OpenRecordFolder(out)) << "an unfinished store was opened";
    // Not without a word.
    if (!fs::exists(out + "/experts_00000.xpr.partial") &&
        !fs::exists(out + "/experts_00000.xpr")) {
      continue;
    }
    const Error refused = MustFail(TinyMoe(), out);
    ASSERT_NE(refused.message().find("--resume goes on with it"), std::string::npos)
        << refused.message();
    PackOptions resume;
    resume.resume = true;
    resumed_max = std::max(resumed_max, MustPack(TinyMoe(), out, resume).resumed_expert_count);
    ASSERT_TRUE(FilesOf(out) == whole) << kill_at;
    fs::remove_all(out);
  }
  EXPECT_GT(resumed_max, 40U);
}

// A store that is replaced is whole, or the new one is, wherever the kill comes.
TEST(PackResume, AKillDuringAReplacementLeavesTheOlderStoreWhole) {
  const TestFolder folder;
  PackOptions options;
  options.threads = 1;
  std::atomic<int> step_count{0};
  CallbackProgress counting([&] { ++step_count; });
  ASSERT_TRUE(Pack(TinyMoe(), folder.Path("new"), options, counting));
  const auto whole = FilesOf(folder.Path("new"));
  const std::string out = folder.Path("s");
  PackOptions older = options;
  older.quantiser = tensor::Nvfp4Quantiser::kAmax;
  MustPack(TinyMoe(), out, older);
  const auto before = FilesOf(out);
  ASSERT_FALSE(before == whole);
  options.force = true;
  for (int kill_at = 1; kill_at <= step_count; kill_at += 1 + step_count / 6) {
    const int status = InChild([&] {
      std::atomic<int> left{kill_at};
      CallbackProgress killer([&] {
        if (--left == 0) ::raise(SIGKILL);
      });
      return Pack(TinyMoe(), out, options, killer) ? 0 : 1;
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << kill_at;
    ASSERT_TRUE(FilesOf(out) == before) << kill_at;
  }
  PackOptions resume = options;
  resume.resume = true;
  resume.force = false;
  EXPECT_NE(MustFail(TinyMoe(), out, resume).message().find("--force --resume goes on with that"),
            std::string::npos);
  EXPECT_TRUE(FilesOf(out) == before);
  resume.force = true;
  EXPECT_GT(MustPack(TinyMoe(), out, resume).resumed_expert_count, 40U);
  EXPECT_TRUE(FilesOf(out) == whole);
  EXPECT_FALSE(fs::exists(out + ".partial"));
}

// Leaves an unfinished store with records in it: one thread, whose steps have one order.
void Interrupt(const std::string& checkpoint, const std::string& out) {
  PackOptions one_thread;
  one_thread.threads = 1;
  const TestFolder folder;
  std::atomic<int> step_count{0};
  CallbackProgress counting([&] { ++step_count; });
  ASSERT_TRUE(Pack(checkpoint, folder.Path("whole"), one_thread, counting));
  const int status = InChild([&] {
    std::atomic<int> left{step_count - step_count / 8};
    CallbackProgress killer([&] {
      if (--left == 0) ::raise(SIGKILL);
    });
    return Pack(checkpoint, out, one_thread, killer) ? 0 : 1;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
}

TEST(PackResume, RefusesOtherOptionsAndAnotherSourceAndKeepsWhatIsDone) {
  const TestFolder folder;
  const std::string source = folder.Path("source");
  fs::copy(TinyMoe(), source);
  Interrupt(source, folder.Path("s"));
  PackOptions options;
  options.resume = true;
  options.quantiser = tensor::Nvfp4Quantiser::kAmax;
  const Error other = MustFail(source, folder.Path("s"), options);
  EXPECT_EQ(other.code(), ErrorCode::kInvalid);
  EXPECT_NE(other.message().find("options.quantiser: then \"mse\", now \"amax\""),
            std::string::npos)
      << other.message();
  EXPECT_NE(other.message().find("--force instead of --resume"), std::string::npos);
  EXPECT_EQ(other.message().find("goes on from here"), std::string::npos);
  options.quantiser = tensor::Nvfp4Quantiser::kMse;
  std::string weights = ReadText(source + "/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  const std::string right = ReadText(source + "/model.safetensors");
  const auto time = fs::last_write_time(source + "/model.safetensors");
  WriteText(source + "/model.safetensors", weights);
  EXPECT_NE(MustFail(source, folder.Path("s"), options).message().find("source.files"),
            std::string::npos);
  WriteText(source + "/model.safetensors", right);
  fs::last_write_time(source + "/model.safetensors", time);
  EXPECT_GT(MustPack(source, folder.Path("s"), options).resumed_expert_count, 0U);
}

TEST(PackResume, SaysThatWithoutTheJournalThereIsNothingToGoOnWith) {
  const TestFolder folder;
  Interrupt(TinyMoe(), folder.Path("s"));
  fs::remove(folder.Path("s/pack.journal"));
  PackOptions options;
  options.resume = true;
  const Error error = MustFail(TinyMoe(), folder.Path("s"), options);
  EXPECT_EQ(error.code(), ErrorCode::kInvalid);
  EXPECT_NE(error.message().find("pack.journal: missing"), std::string::npos) << error.message();
  EXPECT_EQ(error.message().find("--resume goes on"), std::string::npos) << error.message();
}

TEST(PackResume, LetsOneWriterAtATimeIntoAFolder) {
  const TestFolder folder;
  std::atomic<int> step{0};
  Error second(ErrorCode::kIo, "not called");
  CallbackProgress progress([&] {
    PackOptions options;
    options.force = true;
    if (step++ == 0) second = MustFail(TinyMoe(), folder.Path("s"), options);
  });
  ASSERT_TRUE(Pack(TinyMoe(), folder.Path("s"), {}, progress));
  EXPECT_EQ(second.code(), ErrorCode::kInvalid);
  EXPECT_NE(second.message().find("another process"), std::string::npos) << second.message();
}

// Case E06: a drive that fills up; here a limit on the size of files, which gives EFBIG.
TEST(PackFullDrive, LeavesNoStoreAndResumesWhenThereIsSpace) {
  const TestFolder folder;
  MustPack(TinyMoe(), folder.Path("whole"));
  const std::string out = folder.Path("s");
  const int status = InChild([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {200'000, 200'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto report = Pack(TinyMoe(), out, {}, g_no_progress);
    if (report || report.error().code() != ErrorCode::kExhausted) return 1;
    return report.error().message().find("--resume goes on") == std::string::npos ? 2 : 0;
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(fs::exists(out + "/manifest.json"));
  PackOptions options;
  options.resume = true;
  MustPack(TinyMoe(), out, options);
  EXPECT_TRUE(FilesOf(out) == FilesOf(folder.Path("whole")));
}

// A reference checkpoint with its safetensors header changed as text.
std::string WithHeader(const TestFolder& folder, const std::string& name,
                       const std::vector<std::pair<std::string, std::string>>& changes) {
  static int count = 0;
  const std::string source = folder.Path(fmt::format("source{}", ++count));
  fs::copy(Reference("nvfp4/" + name), source);
  const std::string file = ReadText(source + "/model.safetensors");
  const auto header_bytes = LoadStruct<uint64_t>(AsBytes(std::string_view(file)));
  std::string header = file.substr(8, header_bytes);
  for (const auto& [from, to] : changes) {
    const size_t at = header.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) header.replace(at, from.size(), to);
  }
  std::string length(8, '\0');
  StoreStruct(std::as_writable_bytes(std::span(length)), 0, uint64_t{header.size()});
  WriteText(source + "/model.safetensors", length + header + file.substr(8 + header_bytes));
  return source;
}

// With bytes of one tensor replaced.
std::string WithBytes(const TestFolder& folder, const std::string& name, const std::string& tensor,
                      uint64_t offset, const std::string& bytes) {
  const std::string source = WithHeader(folder, name, {});
  std::string file = ReadText(source + "/model.safetensors");
  const auto files = checkpoint::TensorFiles::Open(source).value();
  const checkpoint::TensorInfo* info = files.Find(tensor);
  EXPECT_NE(info, nullptr);
  if (info != nullptr) file.replace(info->offset + offset, bytes.size(), bytes);
  WriteText(source + "/model.safetensors", file);
  return source;
}

std::string FloatText(float value) {
  std::string bytes(sizeof(value), '\0');
  StoreStruct(std::as_writable_bytes(std::span(bytes)), 0, value);
  return bytes;
}

void ExpectRefused(const TestFolder& folder, const std::string& source,
                   const std::vector<std::string>& words) {
  const Error error = MustFail(source, folder.Path("out"));
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.message();
  for (const std::string& word : words) {
    EXPECT_NE(error.message().find(word), std::string::npos) << word << ": " << error.message();
  }
  EXPECT_FALSE(fs::exists(folder.Path("out")));
}

constexpr char kStem[] = "model.layers.1.mlp.experts.2.up_proj.";

TEST(PackSource, RefusesScaleCodesThatAreNaNOrNegativeNamingTensorAndIndex) {
  SKIP_WITHOUT_REFERENCE();
  const TestFolder folder;
  const std::string tensor = std::string(kStem) + "weight_scale";
  for (const char* model : {"b16x32-modelopt", "b16x32-compressed-tensors"}) {
    for (const auto& [byte, text] :
         {std::pair{'\x7f', "0x7f, NaN"}, {'\xff', "0xff, NaN"}, {'\xb8', "0xb8, negative"}}) {
      ExpectRefused(folder, WithBytes(folder, model, tensor, 17, std::string(1, byte)),
                    {"tensor " + tensor, "element 17 (row 8, group 1)", text});
    }
  }
}

// Case C02.
TEST(PackSource, RefusesGlobalScalesThatAreMissingOrNoNumbers) {
  SKIP_WITHOUT_REFERENCE();
  const TestFolder folder;
  const std::string modelopt = std::string(kStem) + "weight_scale_2";
  const std::string compressed = std::string(kStem) + "weight_global_scale";
  for (const float value : {0.0F, -1.0F, HUGE_VALF, NAN}) {
    ExpectRefused(folder, WithBytes(folder, "b16x32-modelopt", modelopt, 0, FloatText(value)),
                  {"tensor " + modelopt, "finite number above 0"});
    ExpectRefused(folder,
                  WithBytes(folder, "b16x32-compressed-tensors", compressed, 0, FloatText(value)),
                  {"tensor " + compressed, "finite number above 0"});
  }
  // Its inverse is infinite.
  ExpectRefused(folder,
                WithBytes(folder, "b16x32-compressed-tensors", compressed, 0, FloatText(1e-42F)),
                {"tensor " + compressed, "inverse"});
  const std::string input = std::string(kStem) + "input_scale";
  ExpectRefused(folder, WithBytes(folder, "b16x32-modelopt", input, 0, FloatText(NAN)),
                {"tensor " + input});
  ExpectRefused(folder,
                WithHeader(folder, "b16x32-modelopt", {{modelopt, std::string(kStem) + "other"}}),
                {"tensor " + modelopt, "missing"});
  const std::string scale = std::string(kStem) + "weight_scale";
  ExpectRefused(folder,
                WithHeader(folder, "b16x32-compressed-tensors",
                           {{scale + "\"", std::string(kStem) + "other\""}}),
                {"tensor " + scale, "missing"});
}

TEST(PackSource, RefusesATensorThatIsHalfOneNamingAndHalfTheOther) {
  SKIP_WITHOUT_REFERENCE();
  const TestFolder folder;
  const std::string stem = kStem;
  const auto rename = [&](const char* model, const std::string& from, const std::string& to) {
    return WithHeader(folder, model, {{stem + from + "\"", stem + to + "\""}});
  };
  ExpectRefused(folder, rename("b16x32-modelopt", "weight_scale_2", "weight_global_scale"),
                {stem + "weight_global_scale", "other NVFP4 kind"});
  ExpectRefused(folder,
                rename("b16x32-compressed-tensors", "weight_global_scale", "weight_scale_2"),
                {stem + "weight_scale_2", "other NVFP4 kind"});
  ExpectRefused(folder, rename("b16x32-modelopt", "input_scale", "input_global_scale"),
                {stem + "input_global_scale", "other NVFP4 kind"});
  ExpectRefused(folder, rename("b16x32-modelopt", "weight", "weight_packed"),
                {stem + "weight_packed"});
  ExpectRefused(folder, rename("b16x32-compressed-tensors", "weight_packed", "weight"),
                {stem + "weight"});
}

// Cases C01 and C04: the names decide, not the config.
TEST(PackSource, RefusesOneNamingInOneLayerAndTheOtherInAnother) {
  SKIP_WITHOUT_REFERENCE();
  const TestFolder folder;
  const auto files = checkpoint::TensorFiles::Open(Reference("nvfp4/a64x128-modelopt")).value();
  const std::pair<std::string, std::string> endings[] = {
      {".weight", ".weight_packed"},
      {".weight_scale_2", ".weight_global_scale"},
      {".input_scale", ".input_global_scale"}};
  std::vector<std::pair<std::string, std::string>> changes;
  for (const auto& [name, info] : files.tensors()) {
    if (!name.starts_with("model.layers.2.mlp.experts.")) continue;
    for (const auto& [from, to] : endings) {
      if (!name.ends_with(from)) continue;
      changes.emplace_back('"' + name + '"',
                           '"' + name.substr(0, name.size() - from.size()) + to + '"');
    }
  }
  ASSERT_EQ(changes.size(), 8U * 3 * 3);
  ExpectRefused(folder, WithHeader(folder, "a64x128-modelopt", changes),
                {"tensor model.layers.2.mlp.experts.0.gate_proj.weight_packed",
                 "another NVFP4 kind than model.layers.1.mlp.experts.0.gate_proj.weight"});
}

TEST(PackSource, RefusesATrunkWhoseScalesCannotBeAndVerifyFindsThem) {
  SKIP_WITHOUT_REFERENCE();
  const std::string stem = "model.layers.1.self_attn.q_proj.";
  const struct {
    std::string tensor;
    std::string bytes;
    std::string message;
  } cases[] = {{stem + "weight_scale", "\x7f", "element 5 is nan"},
               {stem + "weight_scale", "\x81", "element 5 is -0.001953125"},
               {stem + "weight_scale_2", FloatText(0), ": 0, expected a finite number above 0"}};
  for (const auto& item : cases) {
    const TestFolder folder;
    const uint64_t offset = item.bytes.size() == 1 ? 5 : 0;
    const std::string source = WithBytes(folder, "mixed-modelopt", item.tensor, offset, item.bytes);
    ExpectRefused(folder, source, {"tensor " + item.tensor, item.message});
    const auto report = store::VerifyModel(source, {});
    ASSERT_TRUE(report) << report.error().message();
    ASSERT_EQ(report->problem_count, 1U);
    EXPECT_NE(report->problems[0].find(source + "/model.safetensors: tensor " + item.tensor),
              std::string::npos)
        << report->problems[0];
    EXPECT_NE(report->problems[0].find(item.message), std::string::npos) << report->problems[0];
  }
}

TEST(PackSource, RefusesATrunkWithoutAScale) {
  SKIP_WITHOUT_REFERENCE();
  const TestFolder folder;
  const std::string stem = "model.layers.1.self_attn.q_proj.";
  ExpectRefused(
      folder, WithHeader(folder, "mixed-modelopt", {{stem + "weight_scale_2\"", stem + "other\""}}),
      {"tensor " + stem + "weight_scale_2: missing"});
}

TEST(PackSource, GoesByTheNamesAndSaysWhereTheConfigContradicts) {
  SKIP_WITHOUT_REFERENCE();
  const TestFolder folder;
  const std::string source = WithHeader(folder, "b16x32-modelopt", {});
  std::string config = ReadText(source + "/config.json");
  const std::string right = "\"quant_method\": \"modelopt\"";
  ASSERT_NE(config.find(right), std::string::npos);
  config.replace(config.find(right), right.size(), "\"quant_method\": \"compressed-tensors\"");
  WriteText(source + "/config.json", config);
  const PackReport report = MustPack(source, folder.Path("s"));
  ASSERT_FALSE(report.warnings.empty());
  EXPECT_NE(report.warnings.back().find("quant_method is compressed-tensors"), std::string::npos);
  EXPECT_TRUE(ReadText(folder.Path("s/experts_00000.xpr")) ==
              ReadText(Reference("nvfp4/b16x32-store/experts_00000.xpr")));
}

// Case C05: a checkpoint of zeros with experts of width 40.
TEST(PackSource, RefusesWidthsThatFillNoBlock) {
  const std::string micro = Reference("checkpoints/qwen3_moe_micro");
  if (!fs::exists(micro)) GTEST_SKIP() << "no reference data at " << micro;
  const TestFolder folder;
  const std::string source = folder.Path("source");
  fs::create_directory(source);
  std::string config = ReadText(micro + "/config.json");
  const std::string width = "\"moe_intermediate_size\": 64";
  ASSERT_NE(config.find(width), std::string::npos);
  config.replace(config.find(width), width.size(), "\"moe_intermediate_size\": 40");
  WriteText(source + "/config.json", config);
  std::vector<checkpoint::TensorSpec> specs;
  const auto files = checkpoint::TensorFiles::Open(micro).value();
  for (const auto& [name, info] : files.tensors()) {
    specs.push_back({name, info.dtype, info.shape});
    if (name.find(".experts.") == std::string::npos) continue;
    specs.back().shape[name.find("down_proj") == std::string::npos ? 0 : 1] = 40;
  }
  const auto layout = checkpoint::LayOutSafetensors(specs, {}).value();
  WriteText(source + "/model.safetensors", layout.header);
  fs::resize_file(source + "/model.safetensors", layout.total_bytes);
  const Error error = MustFail(source, folder.Path("s"));
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_NE(error.message().find("expert width 40, NVFP4 needs a multiple of 16"),
            std::string::npos)
      << error.message();
  EXPECT_FALSE(fs::exists(folder.Path("s")));
}

// Case C07.
TEST(PackSource, StopsAtNaNWeightsUnlessToldOtherwise) {
  const TestFolder folder;
  const std::string source = folder.Path("source");
  const std::string tensor = "model.layers.1.mlp.experts.3.up_proj.weight";
  fs::copy(TinyMoe(), source);
  std::string file = ReadText(source + "/model.safetensors");
  const uint64_t at = checkpoint::TensorFiles::Open(source).value().Find(tensor)->offset + 2 * 777;
  StoreStruct(std::as_writable_bytes(std::span(file)), at, uint16_t{0x7FC0});
  WriteText(source + "/model.safetensors", file);
  ExpectRefused(folder, source, {"tensor " + tensor, "element 777"});
  PackOptions options;
  options.allow_non_finite = true;
  EXPECT_EQ(MustPack(source, folder.Path("s"), options).non_finite_count, 1U);
}

TEST(PackSource, WantsATokenizerThatWorksUnlessToldOtherwise) {
  const TestFolder folder;
  const std::string source = folder.Path("source");
  fs::copy(TinyMoe(), source);
  WriteText(source + "/tokenizer.json", "{");
  EXPECT_FALSE(Pack(source, folder.Path("s"), {}, g_no_progress));
  EXPECT_FALSE(fs::exists(folder.Path("s")));
  PackOptions options;
  options.allow_broken_text = true;
  const PackReport report = MustPack(source, folder.Path("s"), options);
  ASSERT_FALSE(report.warnings.empty());
  EXPECT_NE(report.warnings.back().find("text: "), std::string::npos);
}

}  // namespace
}  // namespace smoe::convert
