// convert/source.h: what every conversion asks of the checkpoint that it reads.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace smoe::convert {

// A small file that goes into the output as it is. Borrowed from the checkpoint.
struct AnnexText {
  std::string_view name;
  std::string_view content;
};

// Config, tokenizer, chat template: those that are there.
std::vector<AnnexText> TextsOf(const checkpoint::SideFiles& files);

// The checkpoint's files with sizes and hashes of samples, and the config's hash: what an origin
// record says. `times`: modification times too, which a copy changes and an origin must not have;
// a resume asks for the same ones.
Result<Json> SourceJson(const checkpoint::Checkpoint& checkpoint, bool times);

// The same of any files, and the text of their config.
Result<Json> SourceJson(std::span<const io::File> files, std::string_view config, bool times);

// Every file that the checkpoint was or may be read from: no output may replace one.
std::vector<std::string> InputPaths(const checkpoint::Checkpoint& checkpoint);

// A tokenizer or chat template that this build cannot work with is found here, not by the first
// user of the output. With allow_broken_text it is a warning.
Status CheckText(const checkpoint::Checkpoint& checkpoint, bool allow_broken_text,
                 std::vector<std::string>* warnings);

// Families whose experts convert and which the engine computes.
bool EngineRuns(checkpoint::Family family);

// A checkpoint that fits into memory may be wanted again; a larger one would only push out
// everything else.
bool IsLargerThanMemory(const checkpoint::Checkpoint& checkpoint);

// Gives the page cache of one expert back, where its matrices lie in one piece.
void DropExpert(const checkpoint::Checkpoint& checkpoint, uint32_t layer_index,
                uint32_t expert_index);

}  // namespace smoe::convert
