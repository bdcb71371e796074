// Lattices whose arcs go on by several frames, on a GPU: what the arrays look like and the kernels that work on them.
//
// Node (t, u) of a sequence lies at step t + u, column u: all nodes of a step can be computed at once from the steps
// before, and lie side by side. The scores of a step's arcs lie kind by kind, each a row of columns. What is outside of
// a sequence's own lengths is neither written nor read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/log_zero.h"
#include "rnnt/duration.h"

namespace prnn::duration_cuda {

// A call's sizes and inputs. All pointers are device pointers.
struct Problem {
  DurationArcs arcs;
  prnnDataType_t type;
  int64_t batch, max_frames, max_targets, classes, token_stride, duration_stride;
  int blank, big_blanks;
  bool zero_infinity;
  double fast_emit, clamp;
  const void *tokens, *durations;
  const int *targets, *frame_lengths, *target_lengths;

  explicit Problem(const DurationParams& params);

  constexpr int64_t width() const { return max_targets + 1; }
  constexpr int64_t steps() const { return max_frames + max_targets + 1; }
  constexpr int64_t nodes() const { return batch * steps() * width(); }
  constexpr int64_t cells() const { return batch * max_frames * width(); }
};

// A sequence's T_n and U_n; frames is 0 if they or its symbols are out of range.
struct Sequence {
  int frames, targets;
};

// Arrays of one call; Real is double for PRNN_DATA_DOUBLE and float for all other types. L is arcs.lattices.
template <class Real>
struct Lattices {
  Sequence* sequences;  // {N}
  Real* scores;         // {N, steps, arcs, width}; minus infinity for arcs from which the end cannot be reached
  double* alpha;        // {L, N, steps, width}: of all ways from the beginning
  double* beta;         // {L, N, steps, width}: of all ways to the end; NULL when no gradients are wanted
  double* totals;       // {L, N}: of all paths
};

// What a backward call needs, one entry a cell.
template <class Real>
struct Shares {
  Real* slots;                 // {cells, slots}: of the arcs in the cost, by DurationArcs' slots
  Real* token_normalisers;     // log of the sum of exp of the token logits
  Real* duration_normalisers;  // of the duration logits; NULL without them
};

// Checks lengths and symbols.
void run_setup(const Problem& problem, Sequence* sequences, cudaStream_t stream);

// From logits to scores, and normalisers unless NULL.
template <class Real>
void run_emissions(const Problem& problem, const Lattices<Real>& lattices, const Shares<Real>& shares,
                   cudaStream_t stream);

// alpha and, unless it is NULL, beta, in one launch; then the costs.
template <class Real>
void run_recursion(const Problem& problem, const Lattices<Real>& lattices, Real* costs, cudaStream_t stream);

// The slots; those of padding are left as they are.
template <class Real>
void run_shares(const Problem& problem, const Lattices<Real>& lattices, Real* slots, cudaStream_t stream);

// Gradients of the logits. cost_gradients may be NULL: ones.
template <class Real>
void run_gradients(const Problem& problem, const Sequence* sequences, const Shares<Real>& shares,
                   const Real* cost_gradients, void* token_gradients, void* duration_gradients, cudaStream_t stream);

}  // namespace prnn::duration_cuda
