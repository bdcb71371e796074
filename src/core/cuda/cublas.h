// Matrix products on the GPU. cuBLAS is loaded at run time, so that libprnn itself needs no CUDA library: the one that
// the process has already (torch brings it), else the system's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/handle.h"

namespace prnn {

// How float matrices are multiplied. Other types have one way.
enum class FloatProduct { kFloat32, kTf32 };

// A row-major matrix: element (i, j) at i * stride + j, or at j * stride + i if transposed. Of several, each begins
// `apart` elements behind the one before.
struct MatrixView {
  const void* data;
  prnnDataType_t type;
  int64_t stride;
  bool transposed = false;
  int64_t apart = 0;
};

// c[m, n] = alpha * a[m, k] b[k, n] + beta * c, row-major with stride c_stride, on the handle's stream. a and b have
// one type; c has it too, or is float. Sums are made in float (double for double), in the same order for the same
// sizes. `count` such products, of matrices that lie `apart`, c's c_apart. Throws NOT_SUPPORTED if there is no cuBLAS,
// EXECUTION_FAILED if it refuses.
void run_gemm(prnnContext& context, int64_t m, int64_t n, int64_t k, double alpha, const MatrixView& a,
              const MatrixView& b, double beta, void* c, prnnDataType_t c_type, int64_t c_stride,
              FloatProduct precision = FloatProduct::kFloat32, int64_t count = 1, int64_t c_apart = 0);

// A CUDA handle's cuBLAS state, made with it and destroyed with it. A first small product has cuBLAS load its
// code. Without cuBLAS the first product of a call fails.
void create_cublas(prnnContext& context);
void destroy_cublas(prnnContext& context);

}  // namespace prnn
