#include "convert/sculptor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <limits>

#include "base/bytes.h"
#include "convert/files_for_test.h"
#include "store/vault/vault.h"

namespace smoe::convert {
namespace {

NoProgress g_no_progress;

ShatterReport MustShatter(const std::string& checkpoint, const std::string& out,
                          const ShatterOptions& options) {
  auto report = Shatter(checkpoint, out, options, g_no_progress);
  EXPECT_TRUE(report) << report.error().message();
  return report ? std::move(*report) : ShatterReport();
}

Error MustFail(const std::string& checkpoint, const std::string& out,
               const ShatterOptions& options) {
  auto report = Shatter(checkpoint, out, options, g_no_progress);
  EXPECT_FALSE(report);
  return report ? Error(ErrorCode::kIo, "no error") : report.error();
}

template <class T>
T Get(const std::string& file, uint64_t offset) {
  return LoadStruct<T>(AsBytes(std::string_view(file)), offset);
}

void Zero(std::string* file, uint64_t offset, uint64_t size) {
  std::fill_n(file->begin() + static_cast<int64_t>(offset), size, '\0');
}

// Takes out the fields that the original gets wrong: docs/formats/vault.md, "Byte identity".
std::string Comparable(std::string file, bool is_partial) {
  const uint32_t expert_count = Get<uint32_t>(file, 20);
  Zero(&file, Get<uint32_t>(file, 60), 128);
  Zero(&file, 56, 4);
  if (is_partial) Zero(&file, 12, 8);
  for (uint64_t i = 0; i < expert_count; ++i) Zero(&file, 64 + 48 * i + 36, 8);
  return file;
}

ShatterOptions OptionsFromArguments(const Json& arguments) {
  ShatterOptions options;
  options.quantiser = tensor::Quantiser::kReference;
  options.split = true;
  const Json::Array& words = *arguments.AsArray();
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    const std::string& name = *words[i].AsString();
    const auto value = static_cast<uint32_t>(std::stoul(*words[i + 1].AsString()));
    if (name == "--bits") options.bits = static_cast<tensor::SmoeBits>(value);
    if (name == "--group-size") options.group_size = value;
    if (name == "--max-layers") options.max_layers = value;
    if (name == "--max-experts") options.max_experts = value;
  }
  return options;
}

TEST(Shatter, ReproducesEveryVaultAndTrunkOfTheOriginalsLastRevision) {
  const std::string list = Reference("vaults/vaults.json");
  if (!std::filesystem::exists(list)) GTEST_SKIP() << "no reference data at " << list;
  const Json vaults = Json::Parse(ReadText(list), list).value();
  int compared = 0;
  for (const auto& [name, vault] : *vaults.Find("vaults")->AsObject()) {
    const Json* revision = vault.Find("revision");
    const Json* header = vault.Find("header");
    if (revision == nullptr || *revision->AsString() != "01283ab" || header == nullptr) continue;
    SCOPED_TRACE(name);
    const TestFolder folder;
    const ShatterOptions options = OptionsFromArguments(*vault.Find("arguments"));
    const ShatterReport report =
        MustShatter(Reference("checkpoints/" + *vault.Find("checkpoint")->AsString()),
                    folder.Path("o.smoe"), options);
    EXPECT_EQ(report.is_partial, options.max_layers.has_value());
    const std::string expected = ReadText(Reference("vaults/" + *vault.Find("file")->AsString()));
    const std::string found = ReadText(folder.Path("o.smoe"));
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_TRUE(Comparable(found, report.is_partial) == Comparable(expected, report.is_partial));
    EXPECT_TRUE(ReadText(folder.Path("o.scout.safetensors")) ==
                ReadText(Reference("vaults/" + *vault.Find("scout")->AsString())));
    ++compared;
  }
  EXPECT_EQ(compared, 24);
}

std::string Sha256(const std::string& path) {
  std::FILE* pipe = ::popen(("sha256sum '" + path + "'").c_str(), "r");
  char text[65] = {};
  const size_t count = pipe == nullptr ? 0 : std::fread(text, 1, 64, pipe);
  if (pipe != nullptr) ::pclose(pipe);
  return std::string(text, count);
}

TEST(Shatter, GivesTheOriginalsHashesForTheBundledModel) {
  const std::string list = Reference("vaults/tiny-moe/tiny-moe.vaults.json");
  if (!std::filesystem::exists(list)) GTEST_SKIP() << "no reference data at " << list;
  const Json vaults = Json::Parse(ReadText(list), list).value();
  for (const auto& [name, vault] : *vaults.Find("vaults")->AsObject()) {
    SCOPED_TRACE(name);
    const TestFolder folder;
    const std::string path = folder.Path("o.smoe");
    MustShatter(TinyMoe(), path, OptionsFromArguments(*vault.Find("arguments")));
    // The original's ffn_dim is d_model, and it counts groups in 64s.
    std::string file = ReadText(path);
    StoreStruct(std::as_writable_bytes(std::span(file)), 56, Get<uint32_t>(file, 48));
    const uint64_t num_groups = 3 * uint64_t{128} * 256 / 64;
    for (uint64_t i = 0; i < Get<uint32_t>(file, 20); ++i) {
      StoreStruct(std::as_writable_bytes(std::span(file)), 64 + 48 * i + 36, num_groups);
    }
    WriteText(path, file);
    EXPECT_EQ(Sha256(path), *vault.Find("sha256")->AsString());
    // The trunk's hash is no measure here: the original took in goldens.safetensors too, which lies
    // in the same folder and is none of the model's files.
  }
}

TEST(Shatter, GivesTheSameBytesWhateverTheThreads) {
  const TestFolder folder;
  ShatterOptions options;
  options.threads = 1;
  const ShatterReport report = MustShatter(TinyMoe(), folder.Path("a.smoe"), options);
  EXPECT_EQ(report.expert_count, 64U);
  EXPECT_EQ(report.layer_count, 4U);
  EXPECT_FALSE(report.is_partial);
  EXPECT_EQ(report.out_bytes, std::filesystem::file_size(folder.Path("a.smoe")));
  options.threads = 5;
  options.validate = true;
  EXPECT_EQ(MustShatter(TinyMoe(), folder.Path("b.smoe"), options).validated_expert_count, 64U);
  EXPECT_TRUE(ReadText(folder.Path("a.smoe")) == ReadText(folder.Path("b.smoe")));
  EXPECT_FALSE(std::filesystem::exists(folder.Path("b.smoe.journal")));
  EXPECT_FALSE(std::filesystem::exists(folder.Path("b.smoe.partial")));
}

TEST(Shatter, WritesAnAnnexWithTheWholeModel) {
  const TestFolder folder;
  ShatterOptions options;
  options.measure_error = true;
  const ShatterReport report = MustShatter(TinyMoe(), folder.Path("o.smoe"), options);
  const auto vault = store::vault::OpenVault(folder.Path("o.smoe"));
  ASSERT_TRUE(vault) << vault.error().message();
  ASSERT_TRUE(vault->annex);
  EXPECT_TRUE(vault->warnings.empty());
  const auto section = [&](std::string_view name) {
    const auto* found = vault->annex->Find(name);
    EXPECT_NE(found, nullptr) << name;
    return found == nullptr ? std::string()
                            : store::vault::ReadAnnexSection(vault->file, *found).value();
  };
  EXPECT_EQ(section("config.json"), ReadText(TinyMoe() + "/config.json"));
  EXPECT_EQ(section("tokenizer.json"), ReadText(TinyMoe() + "/tokenizer.json"));
  EXPECT_EQ(section("tokenizer_config.json"), ReadText(TinyMoe() + "/tokenizer_config.json"));
  EXPECT_EQ(section("generation_config.json"), ReadText(TinyMoe() + "/generation_config.json"));
  EXPECT_EQ(section("chat_template.jinja"), ReadText(TinyMoe() + "/chat_template.jinja"));
  const Json origin = Json::Parse(section("origin.json"), "origin").value();
  EXPECT_EQ(*origin.Find("quantiser")->AsString(), "mse");
  ASSERT_TRUE(report.errors);
  // 64 experts of 3 matrices of 128 x 256.
  EXPECT_EQ((*report.errors)[2].weight_count, uint64_t{64} * 128 * 256);
  EXPECT_GT((*report.errors)[0].SnrDb(), 18);
  EXPECT_EQ(*origin.Find("errors")->Find("up")->Find("rmse")->AsDouble(),
            (*report.errors)[1].Rmse());
}

TEST(Shatter, WritesNothingInADryRun) {
  const TestFolder folder;
  ShatterOptions options;
  options.dry_run = true;
  const ShatterReport report = MustShatter(TinyMoe(), folder.Path("o.smoe"), options);
  EXPECT_EQ(report.expert_count, 64U);
  EXPECT_TRUE(std::filesystem::is_empty(folder.Path("")));
  options.dry_run = false;
  const uint64_t real_bytes = MustShatter(TinyMoe(), folder.Path("o.smoe"), options).out_bytes;
  EXPECT_GE(report.out_bytes, real_bytes);
  EXPECT_LE(report.out_bytes, real_bytes + (64 << 10));
}

TEST(Shatter, ReplacesAnExistingVaultOnlyWhenForced) {
  const TestFolder folder;
  WriteText(folder.Path("o.smoe"), "precious");
  EXPECT_EQ(MustFail(TinyMoe(), folder.Path("o.smoe"), {}).code(), ErrorCode::kInvalid);
  EXPECT_EQ(ReadText(folder.Path("o.smoe")), "precious");
  ShatterOptions options;
  options.force = true;
  MustShatter(TinyMoe(), folder.Path("o.smoe"), options);
  EXPECT_TRUE(store::vault::OpenVault(folder.Path("o.smoe")));
}

TEST(Shatter, NeverReplacesAFileOfTheCheckpoint) {
  const TestFolder folder;
  const std::string source = folder.Path("model");
  std::filesystem::copy(TinyMoe(), source);
  std::filesystem::create_symlink(source + "/config.json", folder.Path("link.smoe"));
  ShatterOptions options;
  options.force = true;
  size_t files_tried = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    const std::string path = entry.path().string();
    const std::string name = entry.path().filename().string();
    if (name != "model.safetensors" && name != "config.json" && name != "tokenizer.json" &&
        name != "tokenizer_config.json" && name != "generation_config.json" &&
        name != "chat_template.jinja") {
      continue;
    }
    const std::string before = ReadText(path);
    const auto report = Shatter(source, path, options, g_no_progress);
    ASSERT_FALSE(report) << path;
    EXPECT_NE(report.error().message().find("which is being read"), std::string::npos) << path;
    EXPECT_TRUE(ReadText(path) == before) << path;
    ++files_tried;
  }
  EXPECT_GE(files_tried, 6U);
  EXPECT_FALSE(Shatter(source, folder.Path("link.smoe"), options, g_no_progress));
  // A new name inside the folder is no harm.
  EXPECT_TRUE(Shatter(source, source + "/out.smoe", options, g_no_progress));
}

TEST(Shatter, MarksAPartOfACheckpointAsPartial) {
  const TestFolder folder;
  ShatterOptions options;
  options.max_layers = 2;
  options.max_experts = 3;
  const ShatterReport report = MustShatter(TinyMoe(), folder.Path("o.smoe"), options);
  EXPECT_TRUE(report.is_partial);
  EXPECT_EQ(report.expert_count, 6U);
  EXPECT_EQ(report.checkpoint_expert_count, 64U);
  const auto vault = store::vault::OpenVault(folder.Path("o.smoe"));
  ASSERT_TRUE(vault) << vault.error().message();
  EXPECT_TRUE(vault->is_partial());
}

// Case E07: kill -9 at many points, then resume.
TEST(ShatterResume, EndsWithTheBytesOfAnUninterruptedRunAfterAKillAnywhere) {
  const TestFolder folder;
  ShatterOptions options;
  options.measure_error = true;
  std::atomic<int> step_count{0};
  CallbackProgress counting([&] { ++step_count; });
  ASSERT_TRUE(Shatter(TinyMoe(), folder.Path("whole.smoe"), options, counting));
  const std::string whole = ReadText(folder.Path("whole.smoe"));
  uint64_t resumed_max = 0;
  for (int kill_at = 1; kill_at <= step_count; kill_at += 1 + step_count / 20) {
    const std::string out = folder.Path(fmt::format("{}.smoe", kill_at));
    const int status = InChild([&] {
      std::atomic<int> left{kill_at};
      CallbackProgress killer([&] {
        if (--left == 0) ::raise(SIGKILL);
      });
      return Shatter(TinyMoe(), out, options, killer) ? 0 : 1;
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << kill_at;
    ASSERT_FALSE(std::filesystem::exists(out));
    const auto opened = store::vault::OpenVault(out + ".partial");
    ASSERT_FALSE(opened) << "an unfinished vault was opened";
    ShatterOptions resume = options;
    resume.resume = true;
    resumed_max = std::max(resumed_max, MustShatter(TinyMoe(), out, resume).resumed_expert_count);
    ASSERT_TRUE(ReadText(out) == whole) << kill_at;
    ASSERT_FALSE(std::filesystem::exists(out + ".journal"));
    std::filesystem::remove(out);
  }
  EXPECT_GT(resumed_max, 40U);
}

// Leaves an unfinished conversion of `checkpoint` at `out`.
void Interrupt(const std::string& checkpoint, const std::string& out,
               const ShatterOptions& options) {
  const int status = InChild([&] {
    std::atomic<int> left{5};
    CallbackProgress killer([&] {
      if (--left == 0) ::raise(SIGKILL);
    });
    return Shatter(checkpoint, out, options, killer) ? 0 : 1;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
}

TEST(ShatterResume, RefusesOtherOptionsAndAnotherSourceAndKeepsWhatIsDone) {
  const TestFolder folder;
  const std::string source = folder.Path("source");
  std::filesystem::copy(TinyMoe(), source);
  Interrupt(source, folder.Path("o.smoe"), {});
  const std::string partial = ReadText(folder.Path("o.smoe.partial"));
  ShatterOptions options;
  options.resume = true;
  options.bits = tensor::SmoeBits::kQ2;
  const Error other_bits = MustFail(source, folder.Path("o.smoe"), options);
  EXPECT_EQ(other_bits.code(), ErrorCode::kInvalid);
  EXPECT_NE(other_bits.message().find("options.bits: then 4, now 2"), std::string::npos)
      << other_bits.message();
  options.bits = tensor::SmoeBits::kQ4;
  // One weight of the source changes; size and header stay.
  std::string weights = ReadText(source + "/model.safetensors");
  weights[weights.size() - 1] = static_cast<char>(weights.back() ^ 1);
  WriteText(source + "/model.safetensors", weights);
  const Error other_source = MustFail(source, folder.Path("o.smoe"), options);
  EXPECT_NE(other_source.message().find("source.files"), std::string::npos)
      << other_source.message();
  EXPECT_TRUE(ReadText(folder.Path("o.smoe.partial")) == partial);
  // Without resume it starts again.
  options.resume = false;
  EXPECT_EQ(MustShatter(source, folder.Path("o.smoe"), options).resumed_expert_count, 0U);
}

TEST(ShatterResume, AJournalThatAKillLeftBehindAFinishedVaultConfusesNobody) {
  const TestFolder folder;
  const std::string out = folder.Path("o.smoe");
  MustShatter(TinyMoe(), out, {});
  const std::string whole = ReadText(out);
  const auto leave_journal = [&] { std::ofstream(out + ".journal") << "{\"stale\": 1}\n0 0 0\n"; };
  leave_journal();
  ShatterOptions options;
  options.resume = true;
  const Error finished = MustFail(TinyMoe(), out, options);
  EXPECT_EQ(finished.code(), ErrorCode::kInvalid);
  EXPECT_NE(finished.message().find("nothing is left to resume"), std::string::npos)
      << finished.message();
  EXPECT_FALSE(std::filesystem::exists(out + ".journal"));
  leave_journal();
  options.resume = false;
  options.force = true;
  MustShatter(TinyMoe(), out, options);
  EXPECT_TRUE(ReadText(out) == whole);
  EXPECT_FALSE(std::filesystem::exists(out + ".journal"));
}

TEST(ShatterResume, AScoutInTheWayCostsNothingOfWhatIsDone) {
  const TestFolder folder;
  ShatterOptions options;
  options.split = true;
  Interrupt(TinyMoe(), folder.Path("o.smoe"), options);
  const std::string partial = ReadText(folder.Path("o.smoe.partial"));
  const std::string journal = ReadText(folder.Path("o.smoe.journal"));
  WriteText(folder.Path("o.scout.safetensors"), "mine");
  EXPECT_NE(MustFail(TinyMoe(), folder.Path("o.smoe"), options).message().find("--force replaces"),
            std::string::npos);
  EXPECT_TRUE(ReadText(folder.Path("o.smoe.partial")) == partial);
  EXPECT_EQ(ReadText(folder.Path("o.smoe.journal")), journal);
  EXPECT_EQ(ReadText(folder.Path("o.scout.safetensors")), "mine");
}

// The second of two renames fails: a folder has taken the vault's place meanwhile.
TEST(ShatterForce, TheOlderTrunkComesBackWhereTheVaultCannotBeReplaced) {
  const TestFolder folder;
  const std::string out = folder.Path("o.smoe");
  const std::string scout = folder.Path("o.scout.safetensors");
  WriteText(scout, "older");
  ShatterOptions options;
  options.split = true;
  options.force = true;
  CallbackProgress progress([&] { std::filesystem::create_directories(out + "/in the way"); });
  const auto failed = Shatter(TinyMoe(), out, options, progress);
  ASSERT_FALSE(failed);
  EXPECT_EQ(ReadText(scout), "older");
  EXPECT_FALSE(std::filesystem::exists(scout + ".replaced"));
  // All that took time is there still, and is said to be.
  EXPECT_NE(failed.error().message().find("--force --resume goes on"), std::string::npos)
      << failed.error().message();
  std::filesystem::remove_all(out);
  options.resume = true;
  EXPECT_GT(MustShatter(TinyMoe(), out, options).resumed_expert_count, 40U);
  EXPECT_NE(ReadText(scout), "older");
  EXPECT_FALSE(std::filesystem::exists(scout + ".replaced"));
}

TEST(ShatterResume, AnInterruptedReplacementSaysHowItGoesOn) {
  const TestFolder folder;
  const std::string out = folder.Path("o.smoe");
  MustShatter(TinyMoe(), out, {});
  const std::string whole = ReadText(out);
  ShatterOptions options;
  options.force = true;
  Interrupt(TinyMoe(), out, options);
  EXPECT_TRUE(ReadText(out) == whole);
  options.resume = true;
  options.force = false;
  EXPECT_NE(MustFail(TinyMoe(), out, options).message().find("--force --resume goes on"),
            std::string::npos);
  options.force = true;
  MustShatter(TinyMoe(), out, options);
  EXPECT_TRUE(ReadText(out) == whole);
  EXPECT_FALSE(std::filesystem::exists(out + ".journal"));
}

TEST(ShatterResume, WritesBlobsAgainThatTheDriveHasLost) {
  const TestFolder folder;
  MustShatter(TinyMoe(), folder.Path("whole.smoe"), {});
  Interrupt(TinyMoe(), folder.Path("o.smoe"), {});
  std::string partial = ReadText(folder.Path("o.smoe.partial"));
  Zero(&partial, 16384, partial.size() - 16384);
  WriteText(folder.Path("o.smoe.partial"), partial);
  ShatterOptions options;
  options.resume = true;
  EXPECT_EQ(MustShatter(TinyMoe(), folder.Path("o.smoe"), options).resumed_expert_count, 0U);
  EXPECT_TRUE(ReadText(folder.Path("o.smoe")) == ReadText(folder.Path("whole.smoe")));
}

TEST(ShatterResume, LetsOneWriterAtATimeAtOneVault) {
  const TestFolder folder;
  std::atomic<int> step{0};
  Error second(ErrorCode::kIo, "not called");
  CallbackProgress progress([&] {
    if (step++ == 0) second = MustFail(TinyMoe(), folder.Path("o.smoe"), {});
  });
  ASSERT_TRUE(Shatter(TinyMoe(), folder.Path("o.smoe"), {}, progress));
  EXPECT_EQ(second.code(), ErrorCode::kInvalid);
  EXPECT_NE(second.message().find("another process"), std::string::npos) << second.message();
}

// Case E06: a drive that fills up; here a limit on the size of files, which gives EFBIG.
TEST(ShatterFullDrive, LeavesNothingUnderTheNameAndResumesWhenThereIsSpace) {
  const TestFolder folder;
  for (bool split : {false, true}) {
    ShatterOptions options;
    options.split = split;
    const std::string out = folder.Path(split ? "s.smoe" : "o.smoe");
    // One file: the blobs fit, the trunk does not. Two files: the vault itself does not.
    const std::string message_path = folder.Path("message");
    const int status = InChild([&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlim_t bytes = rlim_t{split ? 4U : 5U} << 20;
      const rlimit limit = {bytes, bytes};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
      const auto report = Shatter(TinyMoe(), out, options, g_no_progress);
      if (report) return 2;
      WriteText(message_path, report.error().message());
      return report.error().code() == ErrorCode::kExhausted ? 0 : 1;
    });
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 0) << ReadText(message_path);
    EXPECT_NE(ReadText(message_path).find(".partial"), std::string::npos);
    EXPECT_NE(ReadText(message_path).find("File too large"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(out));
    options.resume = true;
    MustShatter(TinyMoe(), out, options);
    EXPECT_TRUE(store::vault::OpenVault(out));
  }
}

TEST(ShatterFullDrive, SaysWhatItNeedsBeforeItStarts) {
  // A sparse checkpoint of 4 TB: more than the drive of any test machine has free.
  const TestFolder folder;
  const std::string config = ReadText(TinyMoe() + "/config.json");
  const uint64_t rows = uint64_t{1} << 20;
  std::string header = "{";
  // Only the embedding is huge; the rest is the bundled model's.
  std::string source = ReadText(TinyMoe() + "/model.safetensors");
  const uint64_t header_bytes = Get<uint64_t>(source, 0);
  std::string text = source.substr(8, header_bytes);
  text.resize(text.find_last_of('}'));
  const uint64_t data_bytes = source.size() - 8 - header_bytes;
  const uint64_t huge = rows * rows * 4;
  text += fmt::format(
      ",\"model.extra.weight\":{{\"dtype\":\"F32\",\"shape\":[{},{}],\"data_offsets\":[{},{}]}}}}",
      rows, rows, data_bytes, data_bytes + huge);
  std::string length(8, '\0');
  StoreStruct(std::as_writable_bytes(std::span(length)), 0, uint64_t{text.size()});
  std::filesystem::create_directory(folder.Path("source"));
  WriteText(folder.Path("source/config.json"), config);
  const std::string path = folder.Path("source/model.safetensors");
  WriteText(path, length + text + source.substr(8 + header_bytes));
  std::error_code error;
  std::filesystem::resize_file(path, 8 + text.size() + data_bytes + huge, error);
  if (error) GTEST_SKIP() << "no sparse files of 4 TB here: " << error.message();
  const Error refused = MustFail(folder.Path("source"), folder.Path("o.smoe"), {});
  EXPECT_EQ(refused.code(), ErrorCode::kExhausted);
  EXPECT_NE(refused.message().find("needs 4398"), std::string::npos) << refused.message();
  EXPECT_FALSE(std::filesystem::exists(folder.Path("o.smoe.partial")));
}

// The bundled model's weights with bf16 element `index` of a tensor replaced.
std::string WithElement(const TestFolder& folder, const std::string& tensor, uint64_t index,
                        uint16_t bits) {
  const std::string source = folder.Path(fmt::format("source{:04x}", bits));
  std::filesystem::copy(TinyMoe(), source);
  std::string file = ReadText(source + "/model.safetensors");
  const uint64_t header_bytes = Get<uint64_t>(file, 0);
  const Json header = Json::Parse(file.substr(8, header_bytes), source).value();
  const Json& info = *header.Find(tensor);
  EXPECT_EQ(*info.Find("dtype")->AsString(), "BF16");
  const uint64_t begin = *(*info.Find("data_offsets")->AsArray())[0].AsUint();
  StoreStruct(std::as_writable_bytes(std::span(file)), 8 + header_bytes + begin + 2 * index, bits);
  WriteText(source + "/model.safetensors", file);
  return source;
}

constexpr const char* kSomeTensor = "model.layers.1.mlp.experts.3.up_proj.weight";

// Case C07.
TEST(ShatterSource, StopsAtNaNAndInfinityNamingTensorAndIndex) {
  const TestFolder folder;
  for (uint16_t bits : {uint16_t{0x7F80}, uint16_t{0xFF80}, uint16_t{0x7FC0}}) {
    const std::string source = WithElement(folder, kSomeTensor, 777, bits);
    const Error error = MustFail(source, folder.Path("o.smoe"), {});
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_NE(error.message().find(fmt::format("tensor {}: element 777", kSomeTensor)),
              std::string::npos)
        << error.message();
    EXPECT_FALSE(std::filesystem::exists(folder.Path("o.smoe.partial")));
    EXPECT_FALSE(std::filesystem::exists(folder.Path("o.smoe.journal")));
    ShatterOptions options;
    options.allow_non_finite = true;
    options.force = true;
    options.validate = true;
    EXPECT_EQ(MustShatter(source, folder.Path("allowed.smoe"), options).non_finite_count, 1U);
  }
}

TEST(ShatterSource, RefusesWeightsBeyondTheScalesRangeAndTakesSubnormals) {
  const TestFolder folder;
  const std::string huge = WithElement(folder, kSomeTensor, 5, 0x7F7F);
  const Error error = MustFail(huge, folder.Path("o.smoe"), {});
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_NE(error.message().find(fmt::format("tensor {}: element 5", kSomeTensor)),
            std::string::npos)
      << error.message();
  MustShatter(WithElement(folder, kSomeTensor, 5, 0x0001), folder.Path("o.smoe"), {});
}

TEST(ShatterSource, ConvertsFamiliesTheEngineCannotRunAndSaysSo) {
  if (!std::filesystem::exists(Reference(""))) GTEST_SKIP() << "no reference data";
  int converted = 0;
  for (const char* name :
       {"mixtral", "gpt_oss_bf16", "granitemoe", "minimax_m2", "qwen3_5_moe", "qwen3_next",
        "deepseek_v2", "ernie4_5_moe", "hunyuan_v1_moe", "dots1", "deepseek_v3_fp8",
        "minimax_m2_fp8", "gpt_oss_mxfp4", "qwen3_moe_sharded"}) {
    SCOPED_TRACE(name);
    const TestFolder folder;
    ShatterOptions options;
    options.validate = true;
    const ShatterReport report =
        MustShatter(Reference(std::string("checkpoints/") + name), folder.Path("o.smoe"), options);
    const bool runs =
        std::string_view(name) == "mixtral" || std::string_view(name) == "qwen3_moe_sharded";
    bool said = false;
    for (const std::string& warning : report.warnings) {
      said = said || warning.find("does not run this family yet") != std::string::npos;
    }
    EXPECT_EQ(said, !runs);
    ++converted;
  }
  EXPECT_EQ(converted, 14);
}

// Case E08: peak memory does not grow with the largest tensor.
TEST(ShatterMemory, StaysBoundedUnderAnEmbeddingThatIsMuchLarger) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have memory of their own";
#endif
  const TestFolder folder;
  std::string source = ReadText(TinyMoe() + "/model.safetensors");
  const uint64_t header_bytes = Get<uint64_t>(source, 0);
  std::string text = source.substr(8, header_bytes);
  text.resize(text.find_last_of('}'));
  const uint64_t data_bytes = source.size() - 8 - header_bytes;
  const uint64_t huge = uint64_t{300} << 20;
  text += fmt::format(
      ",\"model.extra.weight\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[{},{}]}}}}",
      huge / 2, data_bytes, data_bytes + huge);
  std::string length(8, '\0');
  StoreStruct(std::as_writable_bytes(std::span(length)), 0, uint64_t{text.size()});
  std::filesystem::copy(TinyMoe(), folder.Path("source"));
  const std::string path = folder.Path("source/model.safetensors");
  WriteText(path, length + text + source.substr(8 + header_bytes));
  std::filesystem::resize_file(path, 8 + text.size() + data_bytes + huge);
  source.clear();
  source.shrink_to_fit();
  const int status = InChild([&] {
    rusage before = {};
    ::getrusage(RUSAGE_SELF, &before);
    if (!Shatter(folder.Path("source"), folder.Path("o.smoe"), {}, g_no_progress)) return 1;
    rusage after = {};
    ::getrusage(RUSAGE_SELF, &after);
    return after.ru_maxrss - before.ru_maxrss < (48 << 10) ? 0 : 2;  // in KiB
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace smoe::convert
