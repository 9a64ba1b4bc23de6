// convert/random_weights.h: random weights by counting, for models that nobody trained.
//
// Word i of a stream is a hash of its key and i: any piece of any tensor can be made alone, in any
// order, by any thread, with the same bytes. Keys are made of a seed and of what the stream is for.
//
// Codes of experts are uniform over all their values, which are symmetric about zero in every
// format; the scales of groups differ by up to a factor of 2, as those of real weights do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "tensor/quantise.h"

namespace smoe::convert {

// A key of its own for each `part` below `key`.
uint64_t RandomKey(uint64_t key, uint64_t part);

// One projection of one expert.
struct RandomMatrix {
  uint64_t codes_key = 0;
  uint64_t scales_key = 0;
  double deviation = 0;  // of a weight
};

struct RandomExperts {
  uint64_t seed = 0;
  double in_deviation = 0;  // of gate and up
  // Of down, by expert index / experts_per_layer.
  std::vector<double> down_deviations;
  uint32_t experts_per_layer = 1;

  // `proj`: gate, up, down.
  RandomMatrix Matrix(size_t index, size_t proj) const;
};

// Every bit of `codes`. Cost: at most a third of a nanosecond a byte (4.57 GB with checksums and
// trunk took 1.5 s of one core).
void FillRandomCodes(uint64_t key, MutableBytes codes);

// The f16 scales that give uniform codes the deviation wanted. Requires whole f16s.
void FillSmoeScales(const RandomMatrix& matrix, tensor::SmoeBits bits, MutableBytes scales);

// The E4M3 scales likewise; returns the matrix's global scale.
float FillNvfp4Scales(const RandomMatrix& matrix, MutableBytes scales);

// bf16 weights with a normal distribution cut to 256 values. Element i of the stream is the same
// whatever piece it is made in.
class NormalBf16 {
 public:
  explicit NormalBf16(double deviation);
  // Elements [first, first + out.size()). Requires first to be a multiple of 8.
  void Fill(uint64_t key, uint64_t first, std::span<uint16_t> out) const;

 private:
  uint16_t table_[256];
};

// The value that a standard normal number stays below with this probability, 0 < p < 1.
double NormalQuantile(double p);

}  // namespace smoe::convert
