// How an engine reads its experts: what it says about it, what it keeps, and what the drive may do.
#include "engine/read_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_for_test.h"
#include "io/fake_read_queue.h"
#include "io/file.h"
#include "io/read_choices.h"

namespace smoe::engine {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

class ReadSetupTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "smoe_setup_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    model_ = folder_ + "/tiny.smoe";
    fs::copy_file(Bundled(), model_);
    ASSERT_TRUE(io::File::OpenReadWrite(model_)->Sync().has_value());
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    fs::remove_all(folder_);
  }

  static std::string Bundled() {
    return std::string(SMOE_BINARY_DIR) + "/share/smoe/tiny-moe.smoe";
  }

  Result<std::unique_ptr<Engine>> Open(EngineOptions options, bool direct_io = true) {
    SMOE_TRY_ASSIGN(store::ModelFiles files,
                    store::OpenModelFiles(model_, {.direct_io = direct_io}));
    return Engine::Open(std::move(files), options);
  }

  static EngineOptions Streamed() {
    EngineOptions options;
    options.cache_experts = 7;
    options.context_tokens = 128;
    return options;
  }

  // What is found for the model, small as it is.
  ReadSetup Probe(io::ReadBackend backend = io::ReadBackend::kAuto) {
    const store::ModelFiles files = store::OpenModelFiles(model_, {}).value();
    return OpenReads(*files.experts, {.backend = backend,
                                      .is_streamed = true,
                                      .probe_store_bytes_min = 0,
                                      .choices_path = io::ReadChoicesPath()})
        .value()
        .setup;
  }

  static Outcome Run(Engine& engine) {
    Request request;
    request.prompt = {1, 2, 3, 400, 5, 60, 7, 8};
    request.token_count_max = 12;
    return RunAlone(engine, std::move(request));
  }

  std::string folder_;
  std::string model_;
};

TEST_F(ReadSetupTest, StreamedStoreIsProbedOnceAndTheChoiceIsKept) {
  const ReadSetup first = Probe();
  if (first.rate.bytes == 0) GTEST_SKIP() << first.reason;  // a file system in memory
  EXPECT_THAT(first.reason, StartsWith("probed in "));
  EXPECT_TRUE(fs::exists(io::ReadChoicesPath()));
  const ReadSetup second = Probe();
  EXPECT_THAT(second.reason,
              AllOf(StartsWith("as probed earlier"), HasSubstr(io::ReadChoicesPath())));
  EXPECT_EQ(second.setting, first.setting);
  EXPECT_EQ(second.rate.bytes, first.rate.bytes);
  // Another wish is another choice.
  EXPECT_THAT(Probe(io::ReadBackend::kThreads).reason, StartsWith("probed in "));
}

TEST_F(ReadSetupTest, DamagedChoicesAreMeasuredAgain) {
  fs::create_directories(fs::path(io::ReadChoicesPath()).parent_path());
  std::ofstream(io::ReadChoicesPath()) << "{\"version\": 1, \"choices\": [{";
  const ReadSetup measured = Probe();
  if (measured.rate.bytes == 0) GTEST_SKIP() << measured.reason;
  EXPECT_THAT(measured.reason, StartsWith("probed in "));
  EXPECT_THAT(Probe().reason, StartsWith("as probed earlier"));
}

TEST_F(ReadSetupTest, SmallStoreIsNotProbedAndTheChoiceIsSaid) {
  const auto engine = Open(Streamed()).value();
  EXPECT_THAT(engine->setup().read_setup.reason, HasSubstr("a small store"));
  EXPECT_THAT(engine->choices(), Contains(StartsWith("reads: " + engine->setup().reads)));
  EXPECT_FALSE(fs::exists(io::ReadChoicesPath()));
}

TEST_F(ReadSetupTest, StoreThatFitsTheCacheIsNotProbed) {
  EngineOptions options;
  options.context_tokens = 128;
  const auto engine = Open(options).value();
  EXPECT_THAT(engine->setup().read_setup.reason, HasSubstr("not probed"));
  EXPECT_FALSE(fs::exists(io::ReadChoicesPath()));
}

TEST_F(ReadSetupTest, BackEndAndBufferedReadsAreAsAskedAndChangeNoToken) {
  const std::vector<uint32_t> expected = Run(*Open(Streamed()).value()).tokens;
  ASSERT_EQ(expected.size(), 12u);
  for (const io::ReadBackend backend : {io::ReadBackend::kUring, io::ReadBackend::kThreads}) {
    for (const bool direct_io : {true, false}) {
      EngineOptions options = Streamed();
      options.io = backend;
      auto engine = Open(options, direct_io);
      if (!engine) {
        EXPECT_EQ(engine.error().code(), ErrorCode::kUnsupported) << engine.error().message();
        continue;
      }
      const ReadSetup& setup = (*engine)->setup().read_setup;
      EXPECT_EQ(setup.setting.backend, backend);
      if (!direct_io) {
        EXPECT_FALSE(setup.setting.direct);
        EXPECT_EQ(setup.evidence, io::DirectEvidence::kBuffered);
        EXPECT_THAT((*engine)->setup().reads, HasSubstr("buffered"));
      }
      EXPECT_EQ(setup.setting.direct, setup.evidence != io::DirectEvidence::kBuffered);
      EXPECT_EQ(Run(**engine).tokens, expected);
    }
  }
}

TEST_F(ReadSetupTest, ModelFileThatShrinksFailsTheRequestByNameAndTheEngineRecovers) {
  for (const io::ReadBackend backend : {io::ReadBackend::kAuto, io::ReadBackend::kThreads}) {
    EngineOptions options = Streamed();
    options.io = backend;
    const auto engine = Open(options).value();
    const Outcome before = Run(*engine);
    ASSERT_EQ(before.tokens.size(), 12u) << before.error;
    fs::resize_file(model_, 4096);
    const Outcome cut = Run(*engine);
    EXPECT_LT(cut.tokens.size(), 12u);
    EXPECT_THAT(cut.error, AllOf(HasSubstr(model_), HasSubstr("expert")));
    // The same file, whole again.
    std::ofstream(model_, std::ios::in | std::ios::binary)
        << std::ifstream(Bundled(), std::ios::binary).rdbuf();
    const Outcome after = Run(*engine);
    EXPECT_EQ(after.tokens, before.tokens) << after.error;
  }
}

TEST_F(ReadSetupTest, DriveThatStallsChangesNoToken) {
  const std::vector<uint32_t> expected = Run(*Open(Streamed()).value()).tokens;
  EngineOptions options = Streamed();
  uint32_t read_count = 0;
  options.make_queue = [&read_count]() -> Result<std::unique_ptr<io::ReadQueue>> {
    return io::MakeFakeReadQueue({.seed = 7, .stall = [&read_count](const io::ReadRequest&) {
                                    return ++read_count % 5 == 0 ? 50u : 0u;
                                  }});
  };
  EXPECT_EQ(Run(*Open(options).value()).tokens, expected);
  EXPECT_GT(read_count, 10u);
}

// Memory as the file system: O_DIRECT is refused, or means nothing.
TEST_F(ReadSetupTest, ModelInMemoryReadsWithoutAClaimOfDirectReads) {
  if (!fs::is_directory("/dev/shm")) GTEST_SKIP() << "/dev/shm is not there";
  const std::vector<uint32_t> expected = Run(*Open(Streamed()).value()).tokens;
  const std::string on_disk = model_;
  model_ = "/dev/shm/smoe_setup_" + std::to_string(getpid()) + ".smoe";
  std::error_code error;
  fs::copy_file(on_disk, model_, error);
  if (error) GTEST_SKIP() << model_ << ": " << error.message();
  {
    const auto engine = Open(Streamed()).value();
    EXPECT_NE(engine->setup().read_setup.evidence, io::DirectEvidence::kProven);
    EXPECT_EQ(Run(*engine).tokens, expected);
  }
  fs::remove(model_);
}

// ramfs has no direct reads, and counts no free space. Source: fs/ramfs of Linux.
TEST_F(ReadSetupTest, FileSystemThatRefusesDirectReadsIsReadBufferedAndSaidAloud) {
  const std::vector<uint32_t> expected = Run(*Open(Streamed()).value()).tokens;
  const std::string mount_point = folder_ + "/ramfs";
  fs::create_directory(mount_point);
  if (mount("none", mount_point.c_str(), "ramfs", 0, nullptr) != 0) {
    GTEST_SKIP() << "mounting ramfs on " << mount_point << ": " << std::strerror(errno);
  }
  fs::copy_file(model_, mount_point + "/tiny.smoe");
  model_ = mount_point + "/tiny.smoe";
  {
    testing::internal::CaptureStderr();
    const auto engine = Open(Streamed()).value();
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr(model_), HasSubstr("O_DIRECT"), HasSubstr("using buffered")));
    EXPECT_EQ(engine->setup().read_setup.evidence, io::DirectEvidence::kBuffered);
    EXPECT_THAT(engine->setup().reads, HasSubstr("buffered"));
    EXPECT_EQ(Run(*engine).tokens, expected);
  }
  EXPECT_EQ(umount(mount_point.c_str()), 0) << std::strerror(errno);
}

}  // namespace
}  // namespace smoe::engine
