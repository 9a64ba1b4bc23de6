// Fuzz target of the safetensors table: the first 8 bytes of the input choose the size of the data
// behind the header, the rest is the header. Asserts what acceptance promises.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "checkpoint/safetensors_header.h"

// Named by libFuzzer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using smoe::checkpoint::HeaderEntry;
  constexpr size_t kSizeBytes = sizeof(uint64_t);
  const smoe::Bytes input = std::as_bytes(std::span(data, size));
  (void)smoe::checkpoint::GuessFileKind(input);
  if (size < kSizeBytes) return 0;
  const auto data_bytes = smoe::LoadStruct<uint64_t>(input);
  std::string header(size - kSizeBytes, '\0');
  std::memcpy(header.data(), data + kSizeBytes, header.size());
  const auto entries = smoe::checkpoint::ParseSafetensorsHeader(header, data_bytes);
  if (!entries) return 0;
  uint64_t cursor = 0;
  for (const HeaderEntry& entry : *entries) {
    SMOE_CHECK(entry.begin == cursor && entry.end >= entry.begin);
    const uint64_t count = smoe::tensor::ElementCount(entry.shape).value();
    SMOE_CHECK(count * smoe::tensor::DTypeBytes(entry.dtype) == entry.end - entry.begin);
    cursor = entry.end;
  }
  SMOE_CHECK(cursor == data_bytes);
  return 0;
}
