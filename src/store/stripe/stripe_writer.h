// store/stripe/stripe_writer.h: copies a share of a model's experts to other drives.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/expert_store.h"
#include "store/stripe/stripe.h"

namespace smoe::store::stripe {

struct WriteStripeOptions {
  std::string model;                 // as the descriptor names it; made absolute
  std::string out;                   // the descriptor
  std::vector<std::string> folders;  // one for each part
  std::vector<uint32_t> weights;     // the model's own, then one for each folder
  std::vector<std::string> inputs;   // further files of the model, which stay as they are
  bool overwrite = false;
  // Bytes copied so far, of how many. Called from one thread at a time.
  std::function<void(uint64_t done, uint64_t total)> progress;
  // True ends the copying early, kInvalid and without a trace. Asked before each expert, by any
  // thread.
  std::function<bool()> is_stopped;
};

// Every expert is admitted by the store before it is copied, so that damage does not spread.
// All parts are written and synced under temporary names before the first is renamed; the
// descriptor comes last; it is written beforehand too, so that a full or read-only drive for it is
// met early. With `overwrite` the parts of an older striping are removed after that; until then it
// is whole, since no new part takes the name of one of them: OUT.part1-2 beside OUT.part1. A run
// that was killed leaves *.partial files, which the next one replaces.
// Errors: kInvalid for weights, those that leave a part without an expert among them, a folder that
//         is not there, or a file that is and may not be replaced, or is one of the model's;
//         kExhausted naming the folder and both sizes where space is too small; kCorrupt for a
//         damaged expert; kIo.
// Cost: one thread for each part, one expert of memory each.
Result<Stripe> WriteStripe(const ExpertStore& store, const WriteStripeOptions& options);

// Bytes per second of random reads of 1 MiB in `folder`, by a temporary file of kRateFileBytes.
// Errors: kExhausted naming the space that is missing; kIo.
inline constexpr uint64_t kRateFileBytes = uint64_t{128} << 20;
Result<double> MeasureFolder(const std::string& folder);
// The same of random experts of a store. Errors: kUnsupported as PlaceExperts; kIo.
Result<double> MeasureStore(const ExpertStore& store);

// Whole numbers up to 100 in the proportion of the rates, none below 1.
std::vector<uint32_t> WeightsOf(std::span<const double> bytes_per_second);

// What would be refused whatever the weights: a folder that is not there, an output that may not be
// replaced or is a file of the model. WriteStripe looks by itself; here for whoever measures first.
Status CheckStripePlaces(const WriteStripeOptions& options);

// For each folder the name of what shares its drive: the model, or an earlier folder. Empty: none.
std::vector<std::string> SharedDrives(const std::string& model,
                                      std::span<const std::string> folders);

}  // namespace smoe::store::stripe
