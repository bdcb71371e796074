// The matrix products of prnnRNNGatesInputForward and prnnRNNGatesInputBackward.
#pragma once

#include "core/handle.h"

namespace prnn {

// c[m, n] = a[m, k] b[k, n]: row-major matrices of one type, or transposed ones, each without gaps.
struct GatesProduct {
  int64_t m, n, k;
  const void* a;
  bool a_transposed;
  const void* b;
  bool b_transposed;
  void* c;

  int64_t a_stride() const { return a_transposed ? m : k; }
  int64_t b_stride() const { return b_transposed ? k : n; }
};

void multiply_gates_cpu(prnnDataType_t type, const GatesProduct& product);                                    // cpu/
void multiply_gates_cuda(prnnContext& context, prnnDataType_t type, bool tf32, const GatesProduct& product);  // cuda/
}  // namespace prnn
