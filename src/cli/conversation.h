// cli/conversation.h: the messages of a conversation, from flags or from a JSON file.
#pragma once

#include <string>

#include "base/result.h"
#include "text/chat_template.h"

namespace smoe::cli {

// A JSON file: an array of messages, or an object with "messages" and perhaps "tools".
Result<text::ChatRequest> ReadConversation(const std::string& path);

// An optional system message and one message of the user.
text::ChatRequest OneMessage(const std::string& system, const std::string& user);

}  // namespace smoe::cli
