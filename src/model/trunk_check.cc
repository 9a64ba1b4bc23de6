#include "model/trunk_check.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <system_error>

#include "io/file_checksum.h"

namespace smoe::model {

namespace {

// Stays in a core's own cache between the read and the checksum.
constexpr size_t kPieceBytes = size_t{512} << 10;
// What the drive is ahead of the checksum.
constexpr uint64_t kAheadBytes = uint64_t{8} << 20;

}  // namespace

TrunkCheck::TrunkCheck(const store::ModelFiles& files, std::vector<Stretch> stretches,
                       bool drops_page_cache)
    : files_(files),
      stretches_(std::move(stretches)),
      drops_page_cache_(drops_page_cache),
      by_end_(stretches_.size()),
      is_done_(stretches_.size()) {
  if (!files_.trunk_checksum) {
    end_ = std::numeric_limits<uint64_t>::max();
    return;
  }
  std::iota(by_end_.begin(), by_end_.end(), size_t{0});
  std::sort(by_end_.begin(), by_end_.end(), [&](size_t a, size_t b) {
    return stretches_[a].offset + stretches_[a].size < stretches_[b].offset + stretches_[b].size;
  });
  // The standard library reports a refused thread in no other way: Finish then reads by itself.
  try {
    thread_ = std::thread([this] { checksum_.emplace(Read()); });
  } catch (const std::system_error&) {
  }
}

TrunkCheck::~TrunkCheck() {
  stops_ = true;
  if (thread_.joinable()) thread_.join();
}

// Whoever of Done and Passed comes second drops: each first says where it is, then looks for the
// other.
void TrunkCheck::Done(size_t index) {
  is_done_[index] = true;
  if (stretches_[index].offset + stretches_[index].size <= end_) Drop(stretches_[index]);
}

void TrunkCheck::Passed(uint64_t end) {
  end_ = end;
  for (; passed_count_ < by_end_.size(); ++passed_count_) {
    const size_t index = by_end_[passed_count_];
    if (stretches_[index].offset + stretches_[index].size > end) return;
    if (is_done_[index]) Drop(stretches_[index]);
  }
}

void TrunkCheck::Drop(const Stretch& stretch) const {
  if (drops_page_cache_) stretch.file->DropFromPageCache(stretch.offset, stretch.size);
}

Result<uint64_t> TrunkCheck::Read() {
  const store::TrunkChecksum& trunk = *files_.trunk_checksum;
  std::vector<std::byte> buffer(std::min<uint64_t>(kPieceBytes, trunk.size));
  file().ReadAhead(trunk.offset, std::min(kAheadBytes, trunk.size));
  return io::ChecksumOfStretch(
      file(), trunk.offset, trunk.size, buffer, [&](uint64_t at, Bytes piece) -> Status {
        if (stops_) return Invalid("stopped");
        const uint64_t ahead = std::min(trunk.size, at + kAheadBytes);
        file().ReadAhead(trunk.offset + ahead, std::min(piece.size(), trunk.size - ahead));
        Passed(trunk.offset + at + piece.size());
        return Ok();
      });
}

Status TrunkCheck::Finish() {
  if (thread_.joinable()) thread_.join();
  if (files_.trunk_checksum && !checksum_) checksum_.emplace(Read());
  for (const Stretch& stretch : stretches_) Drop(stretch);  // pages that two of them share
  if (!files_.trunk_checksum) return Ok();
  const store::TrunkChecksum& trunk = *files_.trunk_checksum;
  Drop({&file(), trunk.offset, trunk.size});
  if (!*checksum_) return Unexpected(std::move(checksum_->error()));
  if (**checksum_ == trunk.checksum) return Ok();
  return Corrupt(
      "{}: trunk: checksum is {:016x}, expected {:016x}: the file is damaged; copy it anew, or "
      "convert the checkpoint again",
      file().path(), **checksum_, trunk.checksum);
}

}  // namespace smoe::model
