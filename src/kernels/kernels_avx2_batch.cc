// Integer products for many tokens; kernels_avx2.cc says what holds for all of the table.
#include "kernels/int8_batch_256.h"

#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif

namespace smoe::kernels {

void MatMulInt8BatchAvx2(const PlainWeights& weights, const QuantisedRows& x,
                         const MatMulRange& y) {
  MatMulBatch(weights, x, y);
}

}  // namespace smoe::kernels
#endif
