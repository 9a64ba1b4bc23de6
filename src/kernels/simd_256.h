// kernels/simd_256.h: what the headers for 256-bit registers share.
//
// int8_rows_256.h, int8_batch_256.h, int8_panels_256.h and int8_nvfp4_256.h are the text of the
// integer kernels of the tables avx2 and avxvnni, not their machine code: each file that includes
// one compiles it for itself, in an unnamed namespace. __AVXVNNI__ says whether vpdpbusd is there,
// which adds products of four bytes to 32-bit lanes; without it, vpmaddubsw makes 16-bit sums of
// two.
#pragma once

#include "kernels/avx2.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace smoe::kernels {

namespace {

inline __m128i Load128(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
inline __m256i Load256(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
inline size_t Min(size_t a, size_t b) { return a < b ? a : b; }

// The first `count` of eight lanes.
inline __m256i FirstOfEight(size_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(Min(count, 8))),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace

}  // namespace smoe::kernels
#endif
