// cli/conversation.h: the messages of a conversation, from flags or from a JSON file.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/chat_template.h"

namespace smoe::cli {

// JSON text: an array of messages, or an object with "messages" and perhaps "tools". `what` names
// it in messages. Errors: as Json::Parse; kInvalid for other JSON.
Result<text::ChatRequest> ParseConversation(std::string_view content, const std::string& what);

// The same from a file.
Result<text::ChatRequest> ReadConversation(const std::string& path);

// An optional system message and one message of the user.
text::ChatRequest OneMessage(const std::string& system, const std::string& user);

}  // namespace smoe::cli
