#include "cli/conversation.h"

#include "io/file.h"

namespace smoe::cli {

namespace {

constexpr uint64_t kConversationBytesMax = uint64_t{16} << 20;

}  // namespace

Result<text::ChatRequest> ReadConversation(const std::string& path) {
  SMOE_TRY_ASSIGN(const std::string content, io::ReadWholeFile(path, kConversationBytesMax));
  return ParseConversation(content, path);
}

Result<text::ChatRequest> ParseConversation(std::string_view content, const std::string& what) {
  SMOE_TRY_ASSIGN(const Json json, Json::Parse(content, what));
  const Json* messages = json.is_array() ? &json : json.Find("messages");
  if (messages == nullptr || !messages->is_array()) {
    return Invalid("{}: {}, expected an array of messages or an object with \"messages\"", what,
                   json.type_name());
  }
  text::ChatRequest request;
  request.messages = *messages;
  if (const Json* tools = json.Find("tools")) request.tools = *tools;
  return request;
}

text::ChatRequest OneMessage(const std::string& system, const std::string& user) {
  text::ChatRequest request;
  if (!system.empty()) request.Add("system", system);
  request.Add("user", user);
  return request;
}

}  // namespace smoe::cli
