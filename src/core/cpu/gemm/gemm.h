// Matrix products on the CPU. Two users: whole products, C = A B (team_gemm), and the recurrent products of a timestep,
// a packed matrix times a few vectors (GemmKernels::product).
//
// Every element of every result is one chain of fused multiply-adds over k = 0, 1, 2, ... from its initial value. So
// it has the same bits whatever the number of threads, rows or columns it is computed together with. Products with a
// transposed A, whose k are all rows of a batch, are sums of such chains, of a block of k each.
//
// S is the type of the matrix that does not change from call to call, the weights: float, double, Half or Bfloat16. All
// else is of the type that they are computed in, T.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu/half.h"
#include "core/cpu/threads.h"

namespace prnn {

// C[m, n] = init + sum over k of A[m, k] B[k, n]. C is row-major; A and B are row-major or transposed.
template <class S>
struct Gemm {
  using T = Compute<S>;
  int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;
  int64_t lda = 0;
  bool a_transposed = false;  // A[m, k] at a[k * lda + m]
  const S* b = nullptr;
  int64_t ldb = 0;
  bool b_transposed = false;  // B[k, n] at b[n * ldb + k]
  const T* panels = nullptr;  // of B^T, packed, all k deep; b is then not read
  T* c = nullptr;
  int64_t ldc = 0;
  bool accumulate = false;  // init is C itself
  const T* bias = nullptr;  // init is bias[n]; else zero
  char* scratch = nullptr;  // gemm_scratch() for the team's threads
};

constexpr int64_t kMostPanels = 16;

// A panel is `width` rows of a matrix [rows, k], k-major: element (i, k) at panel[k * width + i], or, where their
// pairs are multiplied, tiles of bfloat16 numbers in no more bytes (dots.h); rows beyond the matrix are zeros. Panels
// of one packed matrix follow each other at a distance of width * k.
template <class S>
struct GemmKernels {
  using T = Compute<S>;
  int64_t width;
  int64_t few;           // vectors, or rows of A, that matrices as they lie are multiplied with without packing
  int64_t most_outer;    // depth of products with a transposed A that are written row after row
  int64_t most_panels;   // that a product is best given at a time, no more than kMostPanels
  size_t scratch_bytes;  // that a thread needs for its share of a product; whole cache lines

  // A panel from rows [0, rows) of a row-major matrix.
  void (*pack_rows)(const S* source, int64_t ld, int64_t rows, int64_t k, T* panel);
  // Panels from columns [0, columns) of a row-major matrix [k, columns].
  void (*pack_columns)(const S* source, int64_t ld, int64_t columns, int64_t k, T* panels);

  // out[p][j][i] = sum over k of panel p's (i, k) * b[j * ldb + k]: `count` consecutive panels, n vectors, for i below
  // `rows`; beyond, out may hold anything. `next`: panels that are used afterwards, which may come to the cache before.
  void (*product)(const T* panels, int64_t count, int64_t rows, int64_t k, const T* b, int64_t ldb, int64_t n, T* out,
                  const T* next);
  // The product from matrices that are not packed: panel p is the first `rows` rows of sources[p].
  void (*product_from_rows)(const S* const* sources, int64_t ld, int64_t rows, int64_t count, int64_t k, const T* b,
                            int64_t ldb, int64_t n, T* out);
  // The product from columns of a row-major matrix: panel p of `count` has (i, k) at source[k * ld + p * width + i].
  void (*product_from_columns)(const S* source, int64_t ld, int64_t count, int64_t k, const T* b, int64_t ldb,
                               int64_t n, T* out);

  // Rows and columns [..) of C; columns start at a multiple of width.
  void (*gemm)(const Gemm<S>& gemm, Range rows, Range columns, char* scratch);

  // The matrix product of operands that are not stored as S.
  void (*gemm_of_data)(const Gemm<T>& gemm, Range rows, Range columns, char* scratch);

  // Adds a matrix's rows [0, rows) to the sums of its columns.
  void (*add_rows)(const T* a, int64_t lda, int64_t rows, int64_t columns, double* sums);

  // Arrays, rounded to nearest.
  void (*widen)(const S* from, int64_t count, T* to);
  void (*narrow)(const T* from, int64_t count, S* to);
};

template <class S>
const GemmKernels<S>& gemm_kernels();

// Where so many threads of a team put packed blocks: memory of the thread that starts them, kept for its life. Throws
// std::bad_alloc, as a thread of the team could not.
template <class T>
char* gemm_scratch(int threads);

// The calling thread's share of a product; the team's threads together compute all of it. No barrier inside.
template <class S>
void team_gemm(const Team& team, const Gemm<S>& gemm);

// team_gemm() of operands that are not stored as S, for a C that is, each of whose elements is rounded once. Neither
// gemm.c nor a bias is looked at; B is not transposed.
template <class S>
void team_gemm_narrow(const Team& team, const Gemm<Compute<S>>& gemm, S* c);

}  // namespace prnn
