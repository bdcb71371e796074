// The 16-bit types, which the CPU kernels read and write but do not compute in. half_vectors.h converts them.
#pragma once

#include <cstdint>

namespace prnn {

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

template <class S>
struct ComputeType {
  using Type = S;
};
template <>
struct ComputeType<Half> {
  using Type = float;
};
template <>
struct ComputeType<Bfloat16> {
  using Type = float;
};

// The type in which numbers that are stored as S are computed.
template <class S>
using Compute = typename ComputeType<S>::Type;

}  // namespace prnn
