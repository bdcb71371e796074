// Loops that the compiler is to unroll whole.
#pragma once

namespace prnn {

// Calls body(i, j) for i of 0 .. I - 1 and j of 0 .. J - 1.
template <int I, int J, class Body>
__device__ __forceinline__ void unroll(const Body& body) {
#pragma unroll
  for (int i = 0; i < I; ++i) {
#pragma unroll
    for (int j = 0; j < J; ++j) body(i, j);
  }
}

}  // namespace prnn
