// io/atomic_file.h: a file that appears under its name complete, or not at all.
//
// Written as PATH.partial, locked against a second writer, synced, then renamed. A crash or a kill
// leaves only PATH.partial, which a later run may resume or replace.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "io/file.h"

namespace smoe::io {

class AtomicFile {
 public:
  struct Options {
    bool overwrite = false;  // may PATH exist already?
    bool resume = false;     // keep the bytes of an existing PATH.partial
  };

  // Errors: kInvalid if PATH exists and overwrite is off ("exists; --force replaces it");
  //         kInvalid if PATH is empty, or a folder, device, pipe or socket, whatever the options: a
  //         rename would put a file in the place of /dev/null; or if its folder is not there;
  //         kInvalid if PATH.partial is there and no regular file;
  //         kInvalid if another process holds the lock on PATH.partial;
  //         kIo otherwise.
  static Result<AtomicFile> Open(const std::string& path, const Options& options);

  AtomicFile(AtomicFile&& other) noexcept = default;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  // Not committed: PATH.partial is removed, unless KeepPartial() was called.
  ~AtomicFile();

  File& file() { return file_; }
  const std::string& partial_path() const { return partial_path_; }
  // From now on a failure leaves PATH.partial for a resume.
  void KeepPartial() { keep_partial_ = true; }
  // fsync, rename, fsync of the directory; file() is closed afterwards. Errors: kInvalid if PATH
  // appeared meanwhile and overwrite is off; kIo otherwise.
  Status Commit();

 private:
  AtomicFile() = default;
  void Discard();
  std::string path_;
  std::string partial_path_;
  File file_;
  bool keep_partial_ = false;
  bool overwrite_ = false;
};

// What AtomicFile::Open would refuse about PATH itself, without a trace: for dry runs. Only a file,
// a link or nothing may be in the place of what is written.
Status CheckOutputPlace(const std::string& path, bool overwrite);

// kInvalid if `path`, or PATH.partial, is one of the files `inputs`, by another name or link too:
// writing there would lose what is being read. Inputs that do not exist are passed over.
Status CheckNoInput(const std::string& path, std::span<const std::string> inputs);

// Writes a small file in one go with the same promise.
Status WriteFileAtomically(const std::string& path, Bytes content, bool overwrite);

}  // namespace smoe::io
