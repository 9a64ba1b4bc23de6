// store/model_text.h: what a model's small files say about text.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "text/text_model.h"

namespace smoe::store {

// Tokenizer, chat templates, stop ids. `where` names the model in messages.
// Errors: as TextModel::Load. Cost: about 0.1 s per megabyte of tokenizer.json.
Result<text::TextModel> LoadText(const checkpoint::SideFiles& side_files, const std::string& where);

}  // namespace smoe::store
