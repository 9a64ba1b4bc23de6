#include "text/rust_call.h"

namespace smoe::text {

namespace {

ErrorCode CodeOf(int code) {
  switch (code) {
    case kSmoeInvalid:
      return ErrorCode::kInvalid;
    case kSmoeCorrupt:
      return ErrorCode::kCorrupt;
    case kSmoeExhausted:
      return ErrorCode::kExhausted;
    default:
      // A panic of a library is something this build cannot do; the text says which.
      return ErrorCode::kUnsupported;
  }
}

}  // namespace

SmoeText Borrow(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Take(SmoeBytes bytes) {
  if (bytes.data == nullptr) return {};
  std::string text(reinterpret_cast<const char*>(bytes.data), bytes.len);
  smoe_bytes_free(bytes);
  return text;
}

std::vector<uint32_t> Take(SmoeIds ids) {
  if (ids.data == nullptr) return {};
  std::vector<uint32_t> copy(ids.data, ids.data + ids.len);
  smoe_ids_free(ids);
  return copy;
}

std::vector<size_t> Take(SmoeOffsets offsets) {
  if (offsets.data == nullptr) return {};
  std::vector<size_t> copy(offsets.data, offsets.data + offsets.len);
  smoe_offsets_free(offsets);
  return copy;
}

Status StatusOf(int code, SmoeBytes error) {
  if (code == kSmoeOk) return Ok();
  return Unexpected(Error(CodeOf(code), Take(error)));
}

}  // namespace smoe::text
