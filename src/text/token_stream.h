// text/token_stream.h: the text of an answer while its tokens arrive.
//
// A character may be spread over several tokens. Push returns whatever has become certain, whole
// characters only: "hi", then three times nothing, then the emoji, then "!". Text that is complete
// is never held back, and bytes that can never become a character give one U+FFFD at once instead
// of stalling the rest. All deltas and Finish together are Tokenizer::Decode of all ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "text/tokenizer.h"

struct SmoeStream;

namespace smoe::text {

// Move-only; may outlive the tokenizer. Threads: one caller at a time.
class TokenStream {
 public:
  // skip_special: special tokens such as <|im_end|> give no text; <think> always does.
  TokenStream(const Tokenizer& tokenizer, bool skip_special);

  // Errors: kInvalid with the id and the vocabulary's size if the id is out of range; the stream
  //         stays usable.
  // Cost:   about 1 us for byte-level vocabularies, some more for others
  Result<std::string> Push(uint32_t id);

  // The rest: U+FFFD if the last character never got whole. The stream then starts anew.
  Result<std::string> Finish();

 private:
  struct Free {
    void operator()(SmoeStream* stream) const;
  };

  std::unique_ptr<SmoeStream, Free> handle_;
};

}  // namespace smoe::text
