// Runs a fuzz target over the files of a folder, every truncation of each, and each with one bit of
// every byte flipped: what libFuzzer starts from, as a plain test. Exit code 1 if there is no file.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void RunAll(std::vector<uint8_t> input) {
  for (size_t size = 0; size <= input.size(); ++size) LLVMFuzzerTestOneInput(input.data(), size);
  for (size_t i = 0; i < input.size(); ++i) {
    const auto flipped = static_cast<uint8_t>(1U << (i % 8));
    input[i] ^= flipped;
    LLVMFuzzerTestOneInput(input.data(), input.size());
    input[i] ^= flipped;
  }
}

}  // namespace

int main(int argc, char** argv) {
  size_t file_count = 0;
  for (int i = 1; i < argc; ++i) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i], error)) {
      std::ifstream file(entry.path(), std::ios::binary);
      RunAll(std::vector<uint8_t>(std::istreambuf_iterator<char>(file), {}));
      ++file_count;
    }
  }
  return file_count == 0 ? 1 : 0;
}
