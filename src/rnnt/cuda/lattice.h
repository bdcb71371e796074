// The RNN-T lattice on a GPU: what its arrays look like and the kernels that work on them. docs/losses_gpu.md tells
// the whole way of the data.
//
// A lattice cell (t, u) of a sequence lies at step s = t + skew * u, column u, with skew = 1 for REGULAR lattices and 0
// for the others: all cells of a step can be computed at once from the step before, and lie side by side. A sequence
// has `steps` = maxFrames + skew * maxTargets + 1 steps of `width` = maxTargets + 1 columns, of which its own lengths
// use a part; what lies outside is neither written nor read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/cuda/scaled.h"
#include "core/reduce_costs.h"
#include "prnn_losses.h"

namespace prnn::rnnt_cuda {

// A sequence as the kernels see it, made on the device by run_setup() or run_emissions(). `frames` is 0 for one whose
// lengths, symbols or pruning ranges are out of range: it has no cells.
struct Sequence {
  int64_t cell_begin;    // PACKED: its first row
  int64_t target_begin;  // its first symbol in targets
  int frames, targets;   // T_n, U_n
};

// A call's options and inputs. All pointers are device pointers.
struct Problem : prnnRNNTLossOptions_t {
  const void* activations;
  const int *targets, *frame_lengths, *target_lengths, *range_begins;

  // Sizes of the lattice arrays.
  __host__ __device__ int skew() const { return type == PRNN_RNNT_REGULAR ? 1 : 0; }
  __host__ __device__ int64_t width() const { return maxTargets + 1; }
  __host__ __device__ int64_t steps() const { return maxFrames + skew() * maxTargets + 1; }
  __host__ __device__ int64_t lattice_cells() const { return batch * steps() * width(); }
  // Whether where sequences begin follows from the lengths of others, or pruning ranges are to be checked; without
  // either the emissions find the sequences.
  __host__ __device__ bool has_offsets() const {
    return layout != PRNN_RNNT_PADDED || (targetLayout == PRNN_TARGETS_CONCATENATED && input != PRNN_LOSS_GATHERED);
  }
  // Cells of the activations, padding included.
  __host__ __device__ int64_t activation_cells() const {
    if (layout == PRNN_RNNT_PACKED) return rows;
    return batch * maxFrames * (layout == PRNN_RNNT_PRUNED ? pruneRange : width());
  }
};

// The scores of a cell's two arcs, as logarithms, or, where that is said, the probabilities with which a path takes
// them.
template <class Real>
struct alignas(2 * sizeof(Real)) Arcs {
  Real blank, label;
};

// Arrays of one call; Real is double for PRNN_DATA_DOUBLE and float for all other types.
template <class Real>
struct Lattice {
  Sequence* sequences;   // {N}
  Arcs<Real>* arcs;      // {N, steps, width}
  Scaled<Real>* alpha;   // {N, steps, width}: probability of all paths from (0, 0) to the cell
  Scaled<Real>* beta;    // {N, steps, width}: from the cell to the end; NULL when no gradients are wanted
  Scaled<Real>* totals;  // {N}: of all paths; NaN for a sequence without cells
};

// The arrays that a backward call reads, one entry a row of the activations.
template <class Real>
struct Shares {
  Arcs<Real>* arcs;   // probabilities of the arcs; CONSTRAINED: the blank's with those of the labels that pass over it
  Real* normalisers;  // log of the sum of exp of the logits; LOGITS alone, else NULL
};

// Checks lengths, symbols and ranges, and finds where sequences begin. Not needed before the emissions of a problem
// without offsets.
void run_setup(const Problem& problem, Sequence* sequences, cudaStream_t stream);

// PRUNED: forbids all arcs, so that those of cells which pruning left out stay forbidden.
template <class Real>
void run_prune(const Problem& problem, const Lattice<Real>& lattice, cudaStream_t stream);

// From activations to arcs, and normalisers unless NULL. After the last target there is no label: its score is kNever.
template <class Real>
void run_emissions(const Problem& problem, const Lattice<Real>& lattice, Real* normalisers, cudaStream_t stream);

// alpha and, unless it is NULL, beta, in one launch; totals, and costs with zeroInfinity applied unless NULL.
template <class Real>
void run_recursion(const Problem& problem, const Lattice<Real>& lattice, Real* costs, cudaStream_t stream);

// The probabilities of the arcs, a row each; rows of padding are left as they are. Makes the loss of the costs in the
// same launch.
template <class Real>
void run_shares(const Problem& problem, const Lattice<Real>& lattice, Arcs<Real>* shares,
                const ReducedCosts<Real>& reduced, cudaStream_t stream);

// Gradients of the activations.
template <class Real>
void run_gradients(const Problem& problem, const Sequence* sequences, const Shares<Real>& shares,
                   const CostGradients<Real>& cost_gradients, void* gradients, cudaStream_t stream);

// The best path instead of all. best {N, steps, width} becomes the score of the best way to a cell. path_scores {N},
// frames {N, maxTargets}.
template <class Real>
void run_best_path(const Problem& problem, const Lattice<Real>& lattice, double* best, Real* path_scores, int* frames,
                   cudaStream_t stream);

}  // namespace prnn::rnnt_cuda
