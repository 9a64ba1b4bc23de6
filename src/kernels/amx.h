// kernels/amx.h: what the files of the AMX table call in each other. Declarations only, for the
// reason that internal.h gives.
#pragma once

#include "kernels/internal.h"

namespace smoe::kernels {

// Q4 and Q2 for many tokens. Requires rows in the range, columns in multiples of 64, and groups of
// 32 or a multiple of 64.
void MatMulInt8BatchAmx(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y);

// int8 for many tokens. Requires rows in the range, and columns.
void MatMulInt8TilesAmx(const PlainWeights& weights, const QuantisedRows& x, const MatMulRange& y);

}  // namespace smoe::kernels
