#include "store/model_size.h"

#include <sys/stat.h>

#include <set>
#include <utility>

namespace smoe::store {

namespace {

// Sizes of files, each counted once however many descriptors it has.
class FileSizes {
 public:
  Status Add(int fd, const std::string& path) {
    if (!fds_.insert(fd).second) return Ok();
    struct stat info = {};
    if (::fstat(fd, &info) != 0) return Io("{}: its size cannot be read", path);
    if (files_.insert({info.st_dev, info.st_ino}).second) {
      bytes_ += static_cast<uint64_t>(info.st_size);
    }
    return Ok();
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::set<int> fds_;
  std::set<std::pair<dev_t, ino_t>> files_;
  uint64_t bytes_ = 0;
};

}  // namespace

Result<ModelSize> MeasureSize(const ModelFiles& files) {
  ModelSize size;
  FileSizes sizes;
  for (const StoreLayer& layer : files.experts->layers()) {
    uint64_t layer_bytes = 0;
    for (uint32_t expert = 0; expert < layer.expert_count; ++expert) {
      const ExpertLocation location = files.experts->Locate({layer.layer_index, expert});
      layer_bytes += location.read_bytes();
      for (uint32_t i = 0; i < location.extent_count; ++i) {
        SMOE_TRY(sizes.Add(location.extents[i].fd, files.experts->path()));
      }
    }
    size.expert_bytes += layer_bytes;
    size.expert_count += layer.expert_count;
    if (layer.expert_count == 0) continue;
    size.token_bytes += layer_bytes / layer.expert_count * files.config.num_experts_per_tok;
  }
  for (const io::File& file : files.trunk.files()) SMOE_TRY(sizes.Add(file.fd(), file.path()));
  size.drive_bytes = sizes.bytes();
  return size;
}

}  // namespace smoe::store
