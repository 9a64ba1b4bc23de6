#include "text/token_stream.h"

#include "text/rust_call.h"

namespace smoe::text {

void TokenStream::Free::operator()(SmoeStream* stream) const { smoe_stream_free(stream); }

TokenStream::TokenStream(const Tokenizer& tokenizer, bool skip_special)
    : handle_(smoe_stream_new(tokenizer.handle(), skip_special)) {}

Result<std::string> TokenStream::Push(uint32_t id) {
  SmoeBytes text{nullptr, 0};
  SMOE_TRY(CallRust(
      [&](SmoeBytes* error) { return smoe_stream_push(handle_.get(), id, &text, error); }));
  return Take(text);
}

Result<std::string> TokenStream::Finish() {
  SmoeBytes text{nullptr, 0};
  SMOE_TRY(
      CallRust([&](SmoeBytes* error) { return smoe_stream_finish(handle_.get(), &text, error); }));
  return Take(text);
}

}  // namespace smoe::text
