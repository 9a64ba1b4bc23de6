#include "checkpoint/files_for_test.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <span>

#include "base/bytes.h"
#include "base/json.h"
#include "tensor/dtype.h"

namespace smoe::checkpoint {

namespace {

namespace fs = std::filesystem;

template <class T>
std::string BytesOf(const std::vector<T>& values) {
  std::string out(values.size() * sizeof(T), '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

}  // namespace

TestFolder::TestFolder() {
  static std::atomic<int> next = 0;
  path_ = fs::temp_directory_path() / fmt::format("smoe_checkpoint_{}_{}", ::getpid(), next++);
  fs::create_directories(path_);
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TestFolder::Write(const std::string& name, const std::string& content) const {
  std::ofstream out(path_ / name, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  return Path(name);
}

std::string RawSafetensors(const std::string& header, const std::string& data) {
  return BytesOf(std::vector<uint64_t>{header.size()}) + header + data;
}

std::string MakeSafetensors(const std::vector<TestTensor>& tensors) {
  Json header = Json(Json::Object());
  std::string data;
  for (const TestTensor& tensor : tensors) {
    Json shape = Json(Json::Array());
    for (const uint64_t size : tensor.shape) shape.Append(Json(size));
    Json offsets = Json(Json::Array());
    offsets.Append(Json(uint64_t{data.size()}));
    data += tensor.data;
    offsets.Append(Json(uint64_t{data.size()}));
    Json entry;
    entry.Set("dtype", Json(tensor::DTypeName(tensor.dtype)));
    entry.Set("shape", std::move(shape));
    entry.Set("data_offsets", std::move(offsets));
    header.AppendMember(tensor.name, std::move(entry));
  }
  return RawSafetensors(header.Dump(), data);
}

std::string F32Data(const std::vector<float>& values) { return BytesOf(values); }

std::string BF16Data(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(tensor::BF16FromF32(value));
  return BytesOf(bits);
}

std::string ReferenceFolder(const std::string& name) {
  const fs::path path = fs::path(SMOE_SHARED_DIR) / "reference" / name;
  return fs::exists(path) ? path.string() : std::string();
}

}  // namespace smoe::checkpoint
