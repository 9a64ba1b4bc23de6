// engine/forecast.h: how fast a model will be, from sizes and two measured rates, before it runs.
//
// Decoding: a token reads its missing experts from the drive and everything it uses from memory.
// No token is faster than the slower of both, max(miss bytes / drive, active bytes / DRAM): the
// bound. What is expected lies above it in time: decoding does not read memory as fast as a plain
// read does, and the faster of the two hides only in part behind the slower. A prompt reads the
// union of its experts once a chunk; of it only the bound is known, with arithmetic taken to be
// free. Source: docs/streaming.md, "The bound"; docs/measuring.md, "smoe plan".
#pragma once

#include <cstddef>
#include <cstdint>

namespace smoe::engine {

// The share of a token's experts that are in memory when the best `cached` of all experts
// (0 to 1) are: cached ^ kSkewExponent, the curve on which the busiest 8 % of the experts take half
// of the selections, as in models with 64 to 128 experts a layer (convert/synth_recipe.h). A router
// that likes all alike would hit `cached` of them.
inline constexpr double kSkewExponent = 0.2744;  // ln 0.5 / ln 0.08
double SkewedHitShare(double cached);

// What a cache that goes by demand and recency hits in the middle of a text: of what the curve
// above misses neighbouring tokens share a part, and the more is cached the more of it is still
// there. 1 - (1 - skewed) (1 - cached) ^ kRecencyExponent; the exponent fits `smoe replay` of
// synth12 within 5 points of hits from 10 to 80 % (docs/streaming.md). Models whose neighbours
// share less hit less.
inline constexpr double kRecencyExponent = 2.2;
double ExpectedHitShare(double cached);

// Decoded bytes of a second by those of a plain read, with every expert in memory: 0.80 to 0.97
// with the AVX-512 VNNI table on two threads, 0.69 with AVX2 (docs/bench/log.tsv).
inline constexpr double kDecodeReadShare = 0.85;
// Of the shorter of the drive's time and memory's what shows beside the longer: 0 if they always
// overlapped, 1 if they never did. 0.2 to 0.65 measured with the rates of the same minute.
inline constexpr double kOverlapMissed = 0.5;

// Experts of one layer that a chunk wants, of a router that likes all alike:
// experts (1 - (1 - top_k / experts) ^ tokens). A skewed one wants fewer.
double UnionCount(double experts, double top_k, double tokens);

struct ForecastDemand {
  uint64_t trunk_read_bytes = 0;  // that a token reads of the trunk: all but the embedding
  uint64_t expert_bytes = 0;      // of one expert
  uint32_t expert_count = 0;      // of all layers
  uint32_t layer_count = 0;       // with experts
  uint32_t top_k = 0;
  uint32_t slot_count = 0;
  size_t chunk_tokens = 1;
  size_t prompt_tokens = 1;
  double drive_rate = 0;  // bytes per second; 0: not measured
  double dram_rate = 0;
};

struct Forecast {
  double hit_share = 0;
  uint64_t miss_bytes = 0;    // that a token reads from the drive
  uint64_t active_bytes = 0;  // that a token reads from memory
  uint64_t prompt_bytes = 0;  // that the prompt reads from the drive, from an empty cache
  // Seconds; 0 where the rate is not known.
  double token_drive_seconds = 0;
  double token_dram_seconds = 0;
  double prompt_drive_seconds = 0;
  double prompt_dram_seconds = 0;
  // All three 0 where a rate that they depend on is not known.
  double tokens_per_second() const;                                                // expected
  double tokens_per_second_bound() const;                                          // at most
  double first_token_seconds() const;                                              // at least
  double memory_seconds() const { return token_dram_seconds / kDecodeReadShare; }  // expected
  bool is_limited_by_drive() const { return token_drive_seconds > memory_seconds(); }
  bool knows_token() const {
    return token_dram_seconds > 0 && (miss_bytes == 0 || token_drive_seconds > 0);
  }
};

// Requires sizes above 0.
Forecast ForecastSpeed(const ForecastDemand& demand);

}  // namespace smoe::engine
