// kernels/batch_512.h: what all kernels share that unpack weights once for many tokens, sixteen
// rows together in 512-bit registers.
//
// Text, not machine code: the files of the AVX-512 and AMX tables each compile it for themselves,
// in an unnamed namespace.
#pragma once

#include "kernels/internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace smoe::kernels {

namespace {

constexpr size_t kQuadCols = 4;  // 64 bytes hold four codes of each of sixteen rows

inline size_t Min(size_t a, size_t b) { return a < b ? a : b; }
inline size_t Parts(size_t count, size_t most) { return (count + most - 1) / most; }

// 16 bytes of each of sixteen rows: out[i] holds the i-th dword of every row. Parts of registers
// are filled from memory, which leaves eight shuffles of registers to four dwords.
[[gnu::always_inline]] inline void TransposeDwords(const uint8_t* const* rows, size_t offset,
                                                   __m512i* out) {
  const auto load = [&](size_t row) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset));
  };
  __m512i four[4];  // four[i], part l: of row 4 l + i
  for (size_t i = 0; i < 4; ++i) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load(i)), load(4 + i), 1);
    four[i] = _mm512_inserti32x4(_mm512_castsi256_si512(low), load(8 + i), 2);
    four[i] = _mm512_inserti32x4(four[i], load(12 + i), 3);
  }
  const __m512i low01 = _mm512_unpacklo_epi32(four[0], four[1]);
  const __m512i high01 = _mm512_unpackhi_epi32(four[0], four[1]);
  const __m512i low23 = _mm512_unpacklo_epi32(four[2], four[3]);
  const __m512i high23 = _mm512_unpackhi_epi32(four[2], four[3]);
  out[0] = _mm512_unpacklo_epi64(low01, low23);
  out[1] = _mm512_unpackhi_epi64(low01, low23);
  out[2] = _mm512_unpacklo_epi64(high01, high23);
  out[3] = _mm512_unpackhi_epi64(high01, high23);
}

// The lines of the weights that come next, asked for a few at a time while others are multiplied: a
// core waits for some sixteen lines at once, and what is asked beyond holds it up. A stretch of a
// row is short, and the processor guesses nothing. They go to the first or the second cache, as
// kCache says: whichever has room for them. A prefetch cannot fault.
template <int kCache>
class LinesAhead {
 public:
  // `line_count` lines of each of `row_count` rows, row_bytes apart; to be fetched in `steps`.
  LinesAhead(uintptr_t first, size_t row_bytes, size_t row_count, size_t line_count, size_t steps)
      : row_(first),
        row_bytes_(row_bytes),
        line_count_(line_count),
        left_(row_count * line_count),
        per_step_(Parts(left_, steps)) {}

  void Step() {
    const size_t count = Min(per_step_, left_);
    left_ -= count;
    for (size_t i = 0; i < count; ++i) {
      const auto* const at = reinterpret_cast<const char*>(row_ + line_ * 64);
      if constexpr (kCache == 1) {
        _mm_prefetch(at, _MM_HINT_T0);
      } else {
        _mm_prefetch(at, _MM_HINT_T1);
      }
      if (++line_ < line_count_) continue;
      line_ = 0;
      row_ += row_bytes_;
    }
  }

 private:
  uintptr_t row_;
  size_t row_bytes_;
  size_t line_count_;
  size_t left_;
  size_t per_step_;
  size_t line_ = 0;
};

}  // namespace

}  // namespace smoe::kernels
#endif
