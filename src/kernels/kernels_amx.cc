// The table for AMX with int8 tiles: products of whole matrices, for the many tokens of a prompt.
// All else is the AVX-512 table's. What kernels_avx512.cc says about inline functions holds here
// too: the files are compiled with these instructions and nothing else is. The bits are those of
// scalar.cc: dot products of a piece are exact, and what is added to what is the same.
#include "kernels/amx.h"
#include "kernels/avx2.h"
#include "kernels/avx512.h"

#if defined(__x86_64__)
// clang 14 writes two of the names without the inner underscore.
#if !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__) || \
    !defined(__AVX512VBMI__) || !defined(__AVX512VNNI__) || !defined(__F16C__) || \
    !(defined(__AMX_TILE__) || defined(__AMXTILE__)) ||                           \
    !(defined(__AMX_INT8__) || defined(__AMXINT8__))
#error "compiled without the instructions that its table asks the CPU for"
#endif

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

// From so many tokens on tiles pay (docs/kernels.md).
constexpr size_t kTileTokensMin = 8;

void MatMulInt8(const tensor::WeightView& view, const QuantisedRows& x, const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  if (x.token_count < kTileTokensMin || y.row_begin >= y.row_end || weights.cols == 0) {
    return MatMulInt8Avx512(view, x, y);
  }
  if (weights.format == WeightFormat::kInt8) return MatMulInt8TilesAmx(weights, x, y);
  const bool is_vault =
      weights.format == WeightFormat::kSmoeQ4 || weights.format == WeightFormat::kSmoeQ2;
  const bool has_pieces = weights.group_size % kActivationBlock == 0 || weights.group_size == 32;
  if (is_vault && has_pieces && weights.cols % kActivationBlock == 0) {
    return MatMulInt8BatchAmx(weights, x, y);
  }
  MatMulInt8Avx512(view, x, y);
}

}  // namespace

const KernelTable kAmxKernels = {.name = "amx",
                                 .runs_here = CpuRunsAmx,
                                 .matmul_f32 = MatMulF32Avx512,
                                 .matmul_int8 = MatMulInt8,
                                 .quantise_row = QuantiseRowAvx2,
                                 .rms_norm = RmsNormAvx2,
                                 .silu_mul = SiluMulAvx2,
                                 .softmax = SoftmaxAvx2,
                                 .sigmoid = SigmoidAvx2,
                                 .add_scaled = AddScaledAvx2,
                                 .to_f16 = ToF16Avx2,
                                 .attend = AttendAvx512,
                                 .merge_attention = MergeAttentionAvx2};

}  // namespace smoe::kernels
#endif
