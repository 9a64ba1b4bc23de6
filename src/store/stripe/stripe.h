// store/stripe/stripe.h: the descriptor of a model whose experts lie on several drives.
//
// A small JSON file that names the model and its parts. The model stays whole where it is; a part
// is a file on another drive with copies of a share of its experts. Which experts those are follows
// from the weights alone, so that the descriptor has no offsets to get wrong.
// Source: docs/formats/stripe.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "base/result.h"
#include "store/expert_store.h"

namespace smoe::store::stripe {

inline constexpr uint32_t kStripeVersion = 1;
inline constexpr size_t kPartsMax = 64;  // beside the model itself
inline constexpr uint32_t kWeightMax = 1000;
inline constexpr uint64_t kDescriptorBytesMax = uint64_t{1} << 20;
inline constexpr uint64_t kPartHeaderBytes = 4096;  // blocks follow, each at a multiple of it
inline constexpr uint8_t kPartMagic[8] = {'S', 'M', 'O', 'E', 'P', 'A', 'R', 'T'};

#pragma pack(push, 1)

// The first bytes of a part; zeros up to kPartHeaderBytes.
struct PartHeader {
  uint8_t magic[8];          // kPartMagic
  uint32_t version;          // kStripeVersion
  uint32_t part_index;       // from 1
  uint64_t stripe_id;        // as the descriptor's
  uint64_t file_bytes;       // of the whole part
  uint64_t body_checksum;    // XXH3-64 of the bytes behind kPartHeaderBytes
  uint64_t header_checksum;  // of the bytes before it
};
static_assert(sizeof(PartHeader) == 48);

#pragma pack(pop)

struct Part {
  std::string path;
  uint32_t weight = 0;
  uint64_t file_bytes = 0;
  uint64_t body_checksum = 0;
};

struct Stripe {
  std::string path;           // of the descriptor
  std::string model;          // the model that was striped
  uint32_t model_weight = 0;  // share of the reads that stays with it
  uint64_t expert_count = 0;
  uint64_t expert_bytes = 0;  // of all of them, as they are read
  std::vector<Part> parts;    // part 1 first

  // What parts and descriptor must agree upon.
  uint64_t Id() const;
};

// Where an expert of a given ordinal lies.
struct Place {
  uint32_t part = 0;    // 0: in the model itself
  uint64_t offset = 0;  // in the part
  uint64_t bytes = 0;   // a multiple of kDirectAlignment
};

struct Placement {
  std::vector<Place> places;         // by ordinal
  std::vector<uint64_t> part_bytes;  // of each part's file, header included; [0] is 0
};

// The one read that brings an expert. Errors: kUnsupported where it is several (a checkpoint
// folder).
Result<ExpertExtent> OneExtent(const ExpertStore& store, ExpertId id);

// Experts in order of their ordinals go to the part whose turn it is: every part gains its weight,
// the one with most (the first of equals) takes the expert and loses the sum of all weights.
// Errors: kInvalid for weights: other than the model's own at 0, above kWeightMax, or too many;
//         kUnsupported as OneExtent.
Result<Placement> PlaceExperts(const ExpertStore& store, std::span<const uint32_t> weights);

// True for a regular file that begins as a descriptor does.
bool IsStripeFile(const std::string& path);

// Errors: kCorrupt naming file, key, expected and found; kIo.
Result<Stripe> ReadStripe(const std::string& path);
Result<Stripe> ParseStripe(std::string_view text, const std::string& path);
std::string StripeText(const Stripe& stripe);

// Paths, sizes and weights for inspect.
Json Describe(const Stripe& stripe);

PartHeader MakePartHeader(const Stripe& stripe, uint32_t part_index);

}  // namespace smoe::store::stripe
