// Integer products for many tokens; kernels_avxvnni.cc has the table.
#include "kernels/int8_batch_256.h"

#if defined(__x86_64__)
#if !defined(__AVXVNNI__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif

namespace smoe::kernels {

void MatMulInt8BatchAvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  MatMulBatch(weights, x, y);
}

}  // namespace smoe::kernels
#endif
