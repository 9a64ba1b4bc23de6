// Integer products for many tokens; kernels_avxvnni.cc has the table.
#include "kernels/int8_batch_256.h"

#if defined(__x86_64__)
#if !defined(__AVXVNNI__) || !defined(__AVX2__)
#error "kernels_avxvnni_batch.cc is compiled without the instructions of its table"
#endif

namespace smoe::kernels {

void MatMulInt8BatchAvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  MatMulBatch(weights, x, y);
}

}  // namespace smoe::kernels
#endif
