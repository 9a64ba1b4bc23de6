#include "io/split_read_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "io/fixed_ring.h"

namespace smoe::io {

namespace {

constexpr uint32_t kPiecesPerRead = 8;  // room for so many of each, on average
constexpr uint32_t kDoneRoom = 64;      // pieces taken in one look

// The tag of a piece: which read, and which of its pieces.
constexpr uint64_t kTagReads = kReadDepthMax;

struct SplitRead {
  ReadRequest request;
  uint64_t piece_count = 0;
  uint64_t pushed_count = 0;  // pieces given to the inner queue
  uint64_t reaped_count = 0;  // of those
  uint64_t failed_piece = 0;  // meaningful if error is set
  int error = 0;
};

class SplitReadQueue final : public ReadQueue {
 public:
  SplitReadQueue(std::unique_ptr<ReadQueue> inner, uint32_t depth, uint64_t piece_bytes)
      : inner_(std::move(inner)),
        piece_bytes_(piece_bytes),
        reads_(depth),
        waiting_(depth),
        finished_(depth),
        inner_done_(kDoneRoom) {
    free_.reserve(depth);
    for (uint32_t index = depth; index > 0; --index) free_.push_back(index - 1);
  }

  const char* name() const override { return inner_->name(); }
  uint32_t free_count() const override { return static_cast<uint32_t>(free_.size()); }

  Status RegisterFiles(std::span<const int> fds) override { return inner_->RegisterFiles(fds); }
  Status RegisterMemory(MutableBytes memory) override { return inner_->RegisterMemory(memory); }
  Status ForgetMemory() override { return inner_->ForgetMemory(); }

  void Push(const ReadRequest& request) override {
    SMOE_CHECK(!free_.empty());
    const uint32_t index = free_.back();
    free_.pop_back();
    const uint64_t pieces = std::max<uint64_t>(1, CeilDiv(request.into.size(), piece_bytes_));
    reads_[index] = {.request = request, .piece_count = pieces};
    waiting_.Push(index);
  }

  Status Submit() override {
    while (!waiting_.empty() && inner_->free_count() > 0) {
      const uint32_t index = waiting_.front();
      PushPiece(index);
      if (reads_[index].pushed_count == reads_[index].piece_count) waiting_.Pop();
    }
    return inner_->Submit();
  }

  Result<size_t> Reap(std::span<ReadDone> done, size_t done_min) override {
    SMOE_CHECK(done_min <= done.size() && done_min <= reads_.size() - free_.size());
    SMOE_TRY(Submit());
    // One look even if enough are finished: whoever only polls must see what the drive has done.
    SMOE_TRY(TakePieces(0));
    while (finished_.size() < done_min) SMOE_TRY(TakePieces(PiecesToNextRead()));
    const size_t count = std::min(done.size(), finished_.size());
    for (size_t i = 0; i < count; ++i) {
      const uint32_t index = finished_.Pop();
      done[i] = {.tag = reads_[index].request.tag, .error = reads_[index].error};
      free_.push_back(index);
    }
    return count;
  }

 private:
  void PushPiece(uint32_t index) {
    SplitRead& read = reads_[index];
    const uint64_t begin = read.pushed_count * piece_bytes_;
    const uint64_t size = std::min<uint64_t>(piece_bytes_, read.request.into.size() - begin);
    inner_->Push({.fd = read.request.fd,
                  .offset = read.request.offset + begin,
                  .into = read.request.into.subspan(begin, size),
                  .tag = read.pushed_count * kTagReads + index});
    ++read.pushed_count;
  }

  // No read can be finished before so many pieces are: sleeping that long costs one wake-up a read
  // instead of one a piece. While pieces wait for room, each that lands makes some.
  size_t PiecesToNextRead() const {
    if (!waiting_.empty()) return 1;
    uint64_t fewest = kDoneRoom;
    for (const SplitRead& read : reads_) {
      if (read.reaped_count < read.piece_count) {
        fewest = std::min(fewest, read.piece_count - read.reaped_count);
      }
    }
    return static_cast<size_t>(fewest);
  }

  Status TakePieces(size_t count_min) {
    SMOE_TRY_ASSIGN(const size_t count, inner_->Reap(inner_done_, count_min));
    for (size_t i = 0; i < count; ++i) Land(inner_done_[i]);
    return waiting_.empty() ? Ok() : Submit();
  }

  void Land(const ReadDone& piece) {
    const uint32_t index = static_cast<uint32_t>(piece.tag % kTagReads);
    const uint64_t number = piece.tag / kTagReads;
    SplitRead& read = reads_[index];
    ++read.reaped_count;
    if (piece.error != 0 && (read.error == 0 || number < read.failed_piece)) {
      read.error = piece.error;
      read.failed_piece = number;
    }
    // What has not begun of a failed read need not be read; Submit would push one piece more.
    if (read.error != 0 && read.pushed_count < read.piece_count) DropWaiting(index);
    if (read.reaped_count == read.piece_count) finished_.Push(index);
  }

  // Pieces are pushed in the order of the reads: only the first that waits has begun.
  void DropWaiting(uint32_t index) {
    SMOE_CHECK(waiting_.front() == index);
    waiting_.Pop();
    reads_[index].piece_count = reads_[index].pushed_count;
  }

  const std::unique_ptr<ReadQueue> inner_;
  const uint64_t piece_bytes_;
  std::vector<SplitRead> reads_;  // by the number in the tags of their pieces
  std::vector<uint32_t> free_;    // indices of reads_ that are not in use
  FixedRing<uint32_t> waiting_;   // with pieces to be pushed
  FixedRing<uint32_t> finished_;  // to be reaped
  std::vector<ReadDone> inner_done_;
};

}  // namespace

uint32_t PieceDepth(uint32_t depth) { return std::min(kReadDepthMax, depth * kPiecesPerRead); }

std::unique_ptr<ReadQueue> MakeSplitReadQueue(std::unique_ptr<ReadQueue> inner, uint32_t depth,
                                              uint64_t piece_bytes) {
  SMOE_CHECK(depth >= 1 && depth <= kReadDepthMax && piece_bytes > 0);
  return std::make_unique<SplitReadQueue>(std::move(inner), depth, piece_bytes);
}

}  // namespace smoe::io
