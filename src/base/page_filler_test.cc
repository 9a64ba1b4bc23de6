#include "base/page_filler.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "base/memory.h"

namespace smoe {
namespace {

// The pages of `memory` that are there.
size_t PagesTaken(Bytes memory) {
  std::vector<unsigned char> there((memory.size() + kPageBytes - 1) / kPageBytes);
  EXPECT_EQ(mincore(const_cast<std::byte*>(memory.data()), memory.size(), there.data()), 0);
  return static_cast<size_t>(
      std::count_if(there.begin(), there.end(), [](unsigned char one) { return (one & 1) != 0; }));
}

// An emulator says yes and does nothing, so the page is looked for.
bool KernelFills() {
  Result<AlignedBuffer> page = AlignedBuffer::Create(kPageBytes, "test");
  return page && madvise(page->data(), kPageBytes, 23) == 0 && PagesTaken(page->bytes()) == 1;
}

TEST(PageFiller, TakesWhatIsInUseAndAStretchAheadAndNoMore) {
  if (!KernelFills()) GTEST_SKIP() << "MADV_POPULATE_WRITE: takes no page here";
  constexpr uint64_t kSize = uint64_t{64} << 20;
  constexpr uint64_t kAhead = uint64_t{8} << 20;
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(kSize, "test");
  ASSERT_TRUE(buffer.has_value());
  EXPECT_EQ(PagesTaken(buffer->bytes()), 0u);
  const auto filler = PageFiller::Start(buffer->bytes(), kAhead);
  ASSERT_NE(filler, nullptr);
  const auto expect = [&](uint64_t bytes) {
    filler->AwaitRest();
    EXPECT_GE(PagesTaken(buffer->bytes()) * kPageBytes, bytes);
    EXPECT_LE(PagesTaken(buffer->bytes()) * kPageBytes, bytes + 2 * kHugePageBytes);
  };
  expect(kAhead);
  filler->Use(uint64_t{20} << 20);
  expect((uint64_t{20} << 20) + kAhead);
  filler->Use(uint64_t{1} << 20);  // less than before changes nothing
  expect((uint64_t{20} << 20) + kAhead);
  filler->Use(kSize);
  filler->AwaitRest();
  EXPECT_EQ(PagesTaken(buffer->bytes()), kSize / kPageBytes);
}

TEST(PageFiller, LeavesContentsAlone) {
  constexpr uint64_t kSize = (uint64_t{5} << 20) + kPageBytes;
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(kSize, "test");
  ASSERT_TRUE(buffer.has_value());
  std::fill_n(buffer->data(), kSize / 2, std::byte{7});
  const auto filler = PageFiller::Start(buffer->bytes(), kSize);
  ASSERT_NE(filler, nullptr);
  filler->AwaitRest();
  EXPECT_EQ(std::count(buffer->data(), buffer->data() + kSize, std::byte{7}),
            static_cast<ptrdiff_t>(kSize / 2));
}

// At the borders of huge pages and off them, whatever the filler has done by then.
TEST(PageFiller, TakesWhatIsWrittenNextByAllThreads) {
  if (!KernelFills()) GTEST_SKIP() << "MADV_POPULATE_WRITE: takes no page here";
  constexpr uint64_t kSize = (uint64_t{64} << 20) + kPageBytes;
  ThreadPool pool(3);
  for (const uint64_t first :
       {kPageBytes, kHugePageBytes - kPageBytes, kHugePageBytes, 7 * kHugePageBytes + kPageBytes}) {
    Result<AlignedBuffer> buffer = AlignedBuffer::Create(kSize, "test");
    ASSERT_TRUE(buffer.has_value());
    const auto filler = PageFiller::Start(buffer->bytes(), 0);
    ASSERT_NE(filler, nullptr);
    for (const uint64_t bytes : {first, first + kPageBytes, first + 9 * kHugePageBytes}) {
      filler->TakeNow(bytes, pool);
      const size_t taken = PagesTaken(buffer->bytes());
      EXPECT_EQ(PagesTaken(buffer->bytes().first(bytes)), bytes / kPageBytes);
      EXPECT_LE(taken * kPageBytes, bytes + 2 * kHugePageBytes);
      std::fill_n(buffer->data(), bytes, std::byte{7});
      filler->TakeNow(bytes, pool);
      EXPECT_EQ(PagesTaken(buffer->bytes()), taken);
    }
    filler->TakeNow(2 * kSize, pool);
    EXPECT_EQ(PagesTaken(buffer->bytes()), kSize / kPageBytes);
    EXPECT_EQ(std::count(buffer->data(), buffer->data() + kSize, std::byte{7}),
              static_cast<ptrdiff_t>(first + 9 * kHugePageBytes));
  }
}

TEST(PageFiller, StopsWhereverItIsAndTakesNothingAfterwards) {
  constexpr uint64_t kSize = uint64_t{256} << 20;
  Result<AlignedBuffer> buffer = AlignedBuffer::Create(kSize, "test");
  ASSERT_TRUE(buffer.has_value());
  const auto filler = PageFiller::Start(buffer->bytes(), kSize);
  ASSERT_NE(filler, nullptr);
  filler->Stop();
  buffer->Discard(0, kSize);
  EXPECT_EQ(PagesTaken(buffer->bytes()), 0u);
  filler->Stop();
}

}  // namespace
}  // namespace smoe
