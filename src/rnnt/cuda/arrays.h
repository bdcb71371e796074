// Where the arrays of lattice.h lie in the reserve space, and what a call's Problem is made of.
#pragma once

#include "core/cuda/arena.h"
#include "core/with_real.h"
#include "rnnt/cuda/lattice.h"

namespace prnn::rnnt_cuda {

// The reserve space, a row of which each cell of the activations has.
template <class Real>
struct Reserve {
  Sequence* sequences;
  Shares<Real> shares;

  Reserve(const Problem& problem, Arena& arena) {
    sequences = arena.take<Sequence>(problem.batch);
    shares.arcs = arena.take<Arcs<Real>>(problem.activation_cells());
    shares.normalisers = problem.input == PRNN_LOSS_LOGITS ? arena.take<Real>(problem.activation_cells()) : nullptr;
  }
};

// Params: RnntParams or JointParams, whose inputs have the same names.
template <class Params>
Problem problem_of(const prnnRNNTLossOptions_t& options, const Params& params, const void* activations) {
  return {options, activations, params.targets, params.frame_lengths, params.target_lengths, params.range_begins};
}

}  // namespace prnn::rnnt_cuda
