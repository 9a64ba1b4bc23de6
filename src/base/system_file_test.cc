#include "base/system_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cerrno>

#include "base/fake_root_for_test.h"
#include "base/huge_pages.h"
#include "base/memory_limits.h"
#include "base/memory_pressure.h"

namespace smoe {
namespace {

using testing::HasSubstr;

class SystemFileTest : public FakeRootTest {};

TEST_F(SystemFileTest, IsReadWholeOrNotThere) {
  const std::string large(100'000, 'x');
  Write("/proc/large", large);
  EXPECT_EQ(ReadSystemFile(root_ + "/proc/large").value(), large);
  EXPECT_EQ(ReadSystemFile(root_ + "/proc/absent").value(), std::nullopt);
  EXPECT_THAT(ReadSystemFile("/proc/self/stat").value().value(), HasSubstr(" ("));
}

TEST_F(SystemFileTest, IsReadUpToTheLimit) {
  for (const size_t beyond : {size_t{0}, size_t{1}}) {
    Write("/proc/large", std::string(kSystemFileBytesMax + beyond, 'x'));
    EXPECT_EQ(ReadSystemFile(root_ + "/proc/large").value()->size(), kSystemFileBytesMax);
  }
}

TEST(OpenErrorText, SaysHowALimitIsRaised) {
  EXPECT_THAT(OpenErrorText(ENFILE), HasSubstr("sysctl fs.file-max"));
  EXPECT_THAT(OpenErrorText(EMFILE), HasSubstr("ulimit -n"));
  EXPECT_EQ(OpenErrorText(ENOENT), "No such file or directory");
  EXPECT_EQ(OpenErrorCode(EMFILE), ErrorCode::kExhausted);
  EXPECT_EQ(OpenErrorCode(ENFILE), ErrorCode::kExhausted);
  EXPECT_EQ(OpenErrorCode(ENOENT), ErrorCode::kIo);
}

// With no file allowed any more, every reader says so instead of "cannot be read" or "no limit".
TEST(SystemFile, TooManyOpenFilesIsSaidToBeThat) {
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit none = {0, before.rlim_max};
  const std::vector<std::byte> memory(64);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto free = ReadFreeMemory();
  const auto pressure = ReadPressure(0);
  const auto pages = ReadPageUse(memory);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const Error* error : {free ? nullptr : &free.error(), pressure ? nullptr : &pressure.error(),
                             pages ? nullptr : &pages.error()}) {
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->code(), ErrorCode::kExhausted);
    EXPECT_THAT(error->message(), HasSubstr("this process may have 0; raise that by ulimit -n"));
  }
}

}  // namespace
}  // namespace smoe
