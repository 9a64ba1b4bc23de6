// io/file.h: a file descriptor with an owner, and whole reads and writes.
//
// Linux moves at most 0x7ffff000 bytes per call and may move fewer: every function here goes on
// until all bytes are moved, or says at which offset, how many were wanted and how many came.
// Pipes, sockets and folders are refused when opened: no read here may wait for a writer.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe::io {

class File {
 public:
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  // Errors: kIo with path and reason; kExhausted for too many open; kInvalid for no regular file.
  static Result<File> OpenRead(const std::string& path);
  // O_DIRECT, proven by one real read: kUnsupported if the file system takes the flag and then
  // refuses the reads. Offsets, lengths and buffers are then multiples of kDirectAlignment.
  static Result<File> OpenDirect(const std::string& path);
  // The same for writing a file that is there: its bytes go past the page cache, which costs less
  // than half of the processor time and leaves the cache to others.
  static Result<File> OpenDirectWrite(const std::string& path);
  static Result<File> OpenReadWrite(const std::string& path);
  // Truncates an existing file.
  static Result<File> Create(const std::string& path);
  // A file in `folder` that has no name and is gone when it is closed. For what does not fit
  // memory.
  static Result<File> CreateUnnamed(const std::string& folder);
  // Keeps the bytes of an existing file.
  static Result<File> OpenOrCreate(const std::string& path);

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  bool is_open() const { return fd_ >= 0; }

  Result<uint64_t> Size() const;
  // Threads: any. kCorrupt if the file ends first ("truncated?"), kIo otherwise.
  Status ReadAt(uint64_t offset, MutableBytes into) const;
  Status WriteAt(uint64_t offset, Bytes from) const;
  Status Truncate(uint64_t size) const;
  // Room on the drive for the first `size` bytes, which become the file's size if it was shorter.
  // Where the file system cannot promise room, nothing happens. Errors: kExhausted, kIo.
  Status Reserve(uint64_t size) const;
  // Data and size are on the drive when this returns.
  Status Sync() const;
  // Hands the range to the drive without waiting, so that a long write never ends in a long Sync.
  void StartWriteback(uint64_t offset, uint64_t size) const;
  void DropFromPageCache(uint64_t offset, uint64_t size) const;
  // The drive begins to read the range into the page cache; nobody waits for it.
  void ReadAhead(uint64_t offset, uint64_t size) const;

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

// File::ReadAt on a descriptor that someone else owns; `path` names it in messages.
Status ReadFd(int fd, const std::string& path, uint64_t offset, MutableBytes into);

inline constexpr uint64_t kDirectAlignment = 4096;

// Address, size and place in the file: what a direct read or write demands of all three.
bool IsDirectAligned(Bytes bytes, uint64_t offset);

// Linux moves at most this many bytes per call, whatever is asked. Source: man 2 read, "NOTES".
inline constexpr uint64_t kCallBytesMax = 0x7ffff000;

// The whole file, at most `size_max` bytes; kInvalid beyond, naming both sizes.
Result<std::string> ReadWholeFile(const std::string& path, uint64_t size_max);

// What FreeSpace says of a file system that does not count its blocks: only writing will tell.
inline constexpr uint64_t kFreeSpaceUnknown = std::numeric_limits<uint64_t>::max();

// Bytes free to this user on the file system of `path` (which need not exist yet).
Result<uint64_t> FreeSpace(const std::string& path);

// fsync of the directory that holds `path`, so that a rename survives a power cut.
Status SyncDirectoryOf(const std::string& path);

}  // namespace smoe::io
