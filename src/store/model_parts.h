// store/model_parts.h: the parts of a model that are no experts, for both expert formats: where the
// small files come from, and whether config, trunk and experts are of one model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "store/model_files.h"

namespace smoe::store {

// What a model carries with itself: a vault's annex, or the files that a record store names.
class PartContainer {
 public:
  virtual ~PartContainer() = default;
  virtual const char* name() const = 0;   // "the annex"
  virtual const char* owner() const = 0;  // "the vault's annex"
  // `part`: "trunk", "config.json", "tokenizer.json", ...
  virtual bool Has(std::string_view part) const = 0;
  // Requires Has(part), and a small file.
  virtual Result<std::string> Read(std::string_view part) const = 0;
};

// Where a part may come from, best first: the container, the options, the folder.
struct PartPlaces {
  const PartContainer& container;
  std::string folder;  // searched last
  const ModelFilesOptions& options;
  ModelFiles* files;  // gets side files, decisions and warnings
};

// Fills files->side_files but for the config, whose text goes to `config_text`; empty: nowhere.
// `config_path`: the file it came from; empty: the container.
// Errors: kInvalid for an option that names nothing; kCorrupt, kIo.
Status FindSideFiles(const PartPlaces& places, std::string* config_text, std::string* config_path);

// An option that the container makes idle is said, not dropped.
void NoteIdleOption(const PartPlaces& places, const char* option, const std::string& value,
                    const char* part);

// tokenizer.json or config.json as an option names it, a file or a folder with it.
// Errors: kInvalid naming option and value if it is not there.
Status CheckNamed(const std::string& option, const std::string& value, std::string_view name);

// What the experts say about the model.
struct ExpertFacts {
  std::string path;  // of the vault or the store
  uint32_t hidden_size = 0;
  uint32_t expert_count = 0;  // per layer
  uint32_t intermediate_size = 0;
  std::vector<uint32_t> layers;  // absolute layers that have experts
};

// Parses the config, compares it with experts and trunk, and fills files->config and files->facts.
// Requires files->trunk. `source` names the config in messages.
// Errors: as the parser's; kInvalid if config and experts are of two models; kCorrupt if the trunk
//         does not have the tensors or shapes that the config demands.
Status AdoptConfig(const Json& json, const std::string& source, const ExpertFacts& experts,
                   ModelFiles* files);

bool IsFolder(const std::string& path);
bool PathExists(const std::string& path);

// The largest published tokenizer.json has 33 MB.
inline constexpr uint64_t kSideFileBytesMax = uint64_t{256} << 20;

}  // namespace smoe::store
