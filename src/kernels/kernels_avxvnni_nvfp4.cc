// Integer products of NVFP4; kernels_avxvnni.cc has the table.
#include "kernels/int8_nvfp4_256.h"

#if defined(__x86_64__)
#if !defined(__AVXVNNI__) || !defined(__AVX2__)
#error "kernels_avxvnni_nvfp4.cc is compiled without the instructions of its table"
#endif

namespace smoe::kernels {

void MatMulInt8Nvfp4AvxVnni(const PlainWeights& weights, const QuantisedRows& x,
                            const MatMulRange& y) {
  MatMulInt8Nvfp4(weights, x, y);
}

}  // namespace smoe::kernels
#endif
