// store/stripe/striped_store.h: the experts of a striped model, each read from its drive.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "store/expert_store.h"
#include "store/stripe/stripe.h"

namespace smoe::store::stripe {

// A layer over `model`, the store of stripe.model: it says where, `model` says everything else, so
// the bits are those of the model. Reads are direct only if they are on every drive.
// Errors: kInvalid for a part that is not there, naming its drive's place and what to do; kCorrupt
//         for one that is truncated, of another striping or of another model; kIo.
// Cost: reads one expert of each part, twice.
Result<std::unique_ptr<ExpertStore>> OpenStripedStore(Stripe stripe,
                                                      std::unique_ptr<ExpertStore> model);

// Reads every part and compares its checksum. What is wrong goes to `on_problem`.
void VerifyParts(const Stripe& stripe, const std::function<void(std::string)>& on_problem);

}  // namespace smoe::store::stripe
