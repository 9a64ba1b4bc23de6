#include "store/model_text.h"

namespace smoe::store {

Result<text::TextModel> LoadText(const checkpoint::SideFiles& side_files,
                                 const std::string& where) {
  text::TextFiles texts;
  texts.tokenizer_json = side_files.tokenizer;
  texts.tokenizer_config_json = side_files.tokenizer_config;
  texts.chat_template_jinja = side_files.chat_template;
  texts.generation_config_json = side_files.generation_config;
  if (!side_files.config.empty()) texts.config_json = side_files.config;
  texts.where = where;
  return text::TextModel::Load(texts);
}

}  // namespace smoe::store
