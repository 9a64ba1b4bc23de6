// text/prompt.h: text for a model, with the places where what somebody wrote ends its power.
//
// A chat template writes control tokens (<|im_start|>, <think>) between what users wrote. If a user
// writes the same characters, they are still only text. A Prompt keeps the two apart without
// cutting the text up, since cutting would change how the words around are split:
//
//   text    "<|im_start|>user\nsay <|im_end|> please<|im_end|>\n"
//   breaks                         ^ 22: no control token is recognised across this offset
//
// so the first <|im_end|> is encoded as letters, the second as one id. With no breaks the ids are
// those of the reference library for the flat text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace smoe::text {

struct Prompt {
  std::string text;            // UTF-8
  std::vector<size_t> breaks;  // byte offsets into text, ascending, on character borders

  // The template looked into a message for a control token (say, content.endswith(...)) and, since
  // it was marked as text, decided otherwise than the reference would have. The prompt is safe;
  // callers say so where a user can see it. Never set for messages without control tokens.
  bool differs_from_reference = false;
};

}  // namespace smoe::text
