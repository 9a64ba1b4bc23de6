// checkpoint/files_for_test.h: small checkpoints for the tests of this folder.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace smoe::checkpoint {

// A folder that lives as long as the test.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string Path(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  // Returns the path written.
  std::string Write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

// An 8-byte length, the text, the data: not checked in any way.
std::string RawSafetensors(const std::string& header, const std::string& data);

struct TestTensor {
  std::string name;
  tensor::DType dtype = tensor::DType::kF32;
  tensor::Shape shape;
  std::string data;
};

// A valid image of the tensors, in the order given.
std::string MakeSafetensors(const std::vector<TestTensor>& tensors);

// Row-major values as the bytes of a dtype (f32, bf16).
std::string F32Data(const std::vector<float>& values);
std::string BF16Data(const std::vector<float>& values);

// The folder ../shared/reference/NAME, or empty where it is absent.
std::string ReferenceFolder(const std::string& name);

}  // namespace smoe::checkpoint
