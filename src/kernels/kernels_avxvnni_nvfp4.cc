// Integer products of NVFP4; kernels_avxvnni.cc has the table.
#include "kernels/int8_nvfp4_256.h"

#if defined(__x86_64__)
#if !defined(__AVXVNNI__) || !defined(__FMA__) || !defined(__F16C__)
#error "compiled without the instructions that its table asks the CPU for"
#endif

namespace smoe::kernels {

void MatMulInt8Nvfp4AvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  MatMulInt8Nvfp4(weights, x, y);
}

}  // namespace smoe::kernels
#endif
