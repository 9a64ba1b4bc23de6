#include "experts/backend.h"

namespace smoe::experts {

const char* ArithmeticName(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kInt8:
      return "int8";
    case Arithmetic::kF32:
      return "f32";
  }
  return "unknown";
}

}  // namespace smoe::experts
