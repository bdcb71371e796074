// Lattices whose arcs go on by several frames, on a GPU: what the arrays look like and the kernels that work on them.
//
// Node (t, u) of a sequence lies at step t + u, column u: all nodes of a step can be computed at once from the steps
// before, and lie side by side. The scores of a step's arcs lie kind by kind, each a row of columns. What is outside of
// a sequence's own lengths is neither written nor read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/scaled.h"
#include "core/reduce_costs.h"
#include "rnnt/cuda/lattice.h"
#include "rnnt/duration.h"

namespace prnn::duration_cuda {

// A cell's share record: the sum of the token slots, the sum of the duration slots, DurationArcs' slots.
constexpr int kSums = 2;

// A call's sizes and inputs. All pointers are device pointers.
struct Problem {
  DurationArcs arcs;
  prnnDataType_t type;
  int64_t batch, max_frames, max_targets, classes, token_stride, duration_stride;
  int blank, big_blanks;
  bool gathered, zero_infinity;
  double fast_emit, clamp;
  const void *tokens, *durations;
  const int *targets, *frame_lengths, *target_lengths;

  explicit Problem(const DurationParams& params);

  constexpr int64_t width() const { return max_targets + 1; }
  constexpr int64_t steps() const { return max_frames + max_targets + 1; }
  constexpr int64_t nodes() const { return batch * steps() * width(); }
  constexpr int64_t cells() const { return batch * max_frames * width(); }
  constexpr int64_t score_rows() const { return arcs.count() * width(); }  // scores of a step
  // Elements of a cell's share record, in pieces of 16 bytes or more.
  constexpr int64_t record_size() const { return (arcs.slots() + kSums + 3) / 4 * 4; }
};

inline Problem::Problem(const DurationParams& params) : arcs(params.options) {
  const prnnDurationRNNTLossOptions_t& o = params.options;
  type = o.dataType;
  batch = o.batch;
  max_frames = o.maxFrames;
  max_targets = o.maxTargets;
  classes = o.classes;
  token_stride = o.tokenStride;
  duration_stride = o.durationStride;
  blank = static_cast<int>(o.blank);
  big_blanks = o.type == PRNN_DURATION_MULTI_BLANK ? static_cast<int>(o.durationCount) : 0;
  gathered = o.input == PRNN_LOSS_GATHERED;
  zero_infinity = o.zeroInfinity != 0;
  fast_emit = o.fastEmitLambda;
  clamp = o.clamp;
  tokens = params.tokens;
  durations = params.durations;
  targets = params.targets;
  frame_lengths = params.frame_lengths;
  target_lengths = params.target_lengths;
}

using rnnt_cuda::Sequence;

// Arrays of one call; Real is double for PRNN_DATA_DOUBLE and float for all other types. L is arcs.lattices.
template <class Real>
struct Lattices {
  Sequence* sequences;   // {N}
  Real* scores;          // {N, steps, arcs, width}; minus infinity for arcs from which the end cannot be reached
  Scaled<Real>* alpha;   // {L, N, steps, width}: probability of all ways from the beginning
  Scaled<Real>* beta;    // {L, N, steps, width}: of all ways to the end; NULL when no gradients are wanted
  Scaled<Real>* totals;  // {L, N}: of all paths; NaN for a sequence without cells
};

// The arrays that a backward call reads, one entry a cell.
template <class Real>
struct Shares {
  Real* records;               // {cells, record_size}
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

// The share records; those of padding are left as they are. Makes the loss of the costs in the same launch.
template <class Real>
void run_shares(const Problem& problem, const Lattices<Real>& lattices, Real* records,
                const ReducedCosts<Real>& reduced, cudaStream_t stream);

// Gradients of the logits.
template <class Real>
void run_gradients(const Problem& problem, const Sequence* sequences, const Shares<Real>& shares,
                   const CostGradients<Real>& cost_gradients, void* token_gradients, void* duration_gradients,
                   cudaStream_t stream);

}  // namespace prnn::duration_cuda
