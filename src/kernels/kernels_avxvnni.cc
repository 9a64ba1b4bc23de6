// The table for AVX-VNNI: integer products with vpdpbusd in 256-bit registers; the rest is AVX2's.
#include "kernels/int8_rows_256.h"

#if defined(__x86_64__)
#if !defined(__AVXVNNI__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif

namespace smoe::kernels {

namespace {

using tensor::WeightFormat;

void MatMulInt8(const tensor::WeightView& view, const QuantisedRows& x, const MatMulRange& y) {
  const PlainWeights weights = Plain(view);
  if (weights.format == WeightFormat::kNvfp4 && weights.rows >= kNvfp4IntRowsMin) {
    return MatMulInt8Nvfp4AvxVnni(weights, x, y);
  }
  if (weights.format == WeightFormat::kInt8) return MatMulInt8TilesAvxVnni(weights, x, y);
  const bool is_vault =
      weights.format == WeightFormat::kSmoeQ4 || weights.format == WeightFormat::kSmoeQ2;
  if (!is_vault || !HasInt8Shape(weights)) return MatMulInt8Avx2(view, x, y);
  if (x.token_count > kRowTokensMax) return MatMulInt8BatchAvxVnni(weights, x, y);
  if (!MatMulFewTokens(weights, x, y)) MatMulInt8BatchAvxVnni(weights, x, y);
}

}  // namespace

const KernelTable kAvxVnniKernels = {.name = "avxvnni",
                                     .runs_here = CpuRunsAvxVnni,
                                     .matmul_f32 = MatMulF32Avx2,
                                     .matmul_int8 = MatMulInt8,
                                     .quantise_row = QuantiseRowAvx2,
                                     .rms_norm = RmsNormAvx2,
                                     .silu_mul = SiluMulAvx2,
                                     .softmax = SoftmaxAvx2,
                                     .sigmoid = SigmoidAvx2,
                                     .add_scaled = AddScaledAvx2,
                                     .to_f16 = ToF16Avx2,
                                     .attend = AttendAvx2,
                                     .merge_attention = MergeAttentionAvx2};

}  // namespace smoe::kernels
#endif
