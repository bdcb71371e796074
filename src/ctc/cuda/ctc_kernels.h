// CTC on a GPU: the arrays and the kernels that work on them. docs/losses_gpu.md tells the whole way of the data.
//
// The states of a sequence with L symbols are L + 1 blanks B(i) and L labels Y(i), in the order B(0) Y(0) B(1) ...
// B(L). B(i) and Y(i) make column i, so that a frame's states lie in `width` = maxTargets + 1 columns; Y(L) does not
// exist.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/scaled.h"
#include "core/reduce_costs.h"
#include "ctc/ctc.h"

namespace prnn::ctc_cuda {

// A sequence as the kernels see it. `frames` is -1 for one whose lengths or symbols are out of range.
struct Sequence {
  int64_t target_begin;
  int frames, targets;  // T_n, L_n
};

// A column's two states: the probabilities of all ways to or from them.
template <class Real>
struct alignas(16) States {
  Scaled<Real> blank, label;
};

// The states of the best way alone, as logarithms.
struct alignas(16) BestStates {
  double blank, label;
};

template <class Real>
struct Arrays {
  Sequence* sequences;   // {N}
  Real* blanks;          // {N, T}: log-probability of the blank
  Real* labels;          // {N, T, width}: of each target symbol
  States<Real>* alpha;   // {N, T, width}: all ways from the start to a state, its own frame counted
  States<Real>* beta;    // {N, T, width}: all ways from a state to the end, its own frame not counted; NULL: not wanted
  Scaled<Real>* totals;  // {N}: all paths; NaN for a bad sequence
};

// The repeats at each position of a target, {N, width}.
struct Repeats {
  int* next;    // the next position of the same symbol, -1 if there is none
  bool* first;  // whether the symbol stands here for the first time
};

// The arrays that a backward call reads.
template <class Real>
struct Reserve {
  Sequence* sequences;  // {N}
  Real* normalisers;    // {N, T}; LOGITS alone, else NULL
  Real* shares;         // {N, T, width + 1}: probability of being in any blank, then in each label
  Repeats repeats;
};

// For kernels: the lengths of a sequence, and where its symbols lie left at 0; whether a symbol is in range.
constexpr Sequence lengths_of(const CtcParams& p, int64_t n) {
  const prnnCTCLossOptions_t& o = p.options;
  const int frames = p.frame_lengths[n], targets = p.target_lengths[n];
  const bool valid = frames >= 0 && frames <= o.maxFrames && targets >= 0 && targets <= o.maxTargets;
  return valid ? Sequence{0, frames, targets} : Sequence{0, -1, 0};
}
constexpr bool is_target(const prnnCTCLossOptions_t& o, int symbol) {
  return symbol >= 0 && symbol < o.classes && symbol != o.blank;
}

// The sequences of CONCATENATED targets, whose beginnings follow from the lengths of all; those of PADDED targets are
// found by run_emissions.
void run_setup(const CtcParams& params, Sequence* sequences, cudaStream_t stream);

template <class Real>
void run_emissions(const CtcParams& params, const Arrays<Real>& arrays, Real* normalisers, cudaStream_t stream);

// alpha and, unless it is NULL, beta and repeats, in one launch; totals and costs.
template <class Real>
void run_recursion(const CtcParams& params, const Arrays<Real>& arrays, const Repeats& repeats, Real* costs,
                   cudaStream_t stream);

// Makes the loss of the costs in the same launch.
template <class Real>
void run_shares(const CtcParams& params, const Arrays<Real>& arrays, Real* shares, const ReducedCosts<Real>& reduced,
                cudaStream_t stream);

template <class Real>
void run_gradients(const CtcParams& params, const Reserve<Real>& reserve, const CostGradients<Real>& cost_gradients,
                   void* gradients, cudaStream_t stream);

// The best path. best {N, T, width}: the best way to a state; moves {N, T, width, 2}: by how many states it moves on
// into each state.
template <class Real>
void run_best_path(const CtcParams& params, const Arrays<Real>& arrays, BestStates* best, unsigned char* moves,
                   Real* path_scores, int* begins, int* ends, cudaStream_t stream);

}  // namespace prnn::ctc_cuda
