// Where the arrays of lattice.h lie in the reserve space, and what a call's Problem is made of.
#pragma once

#include "core/cuda/arena.h"
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

// What the options and inputs of all transducer losses have in common: RnntParams, JointParams.
template <class Params>
Problem common_problem(const Params& params) {
  const auto& o = params.options;
  Problem problem{};
  problem.type = o.dataType;
  problem.lattice = o.type;
  problem.batch = o.batch;
  problem.max_frames = o.maxFrames;
  problem.max_targets = o.maxTargets;
  problem.rows = o.rows;
  problem.prune_range = o.pruneRange;
  problem.classes = o.classes;
  problem.blank = static_cast<int>(o.blank);
  problem.zero_infinity = o.zeroInfinity != 0;
  problem.fast_emit = o.fastEmitLambda;
  problem.clamp = o.clamp;
  problem.delay_penalty = o.delayPenalty;
  problem.targets = params.targets;
  problem.frame_lengths = params.frame_lengths;
  problem.target_lengths = params.target_lengths;
  problem.range_begins = params.range_begins;
  return problem;
}

// Calls function(Real()) with the type in which the lattice is computed.
template <class Function>
auto with_real(prnnDataType_t type, Function&& function) {
  return type == PRNN_DATA_DOUBLE ? function(double()) : function(float());
}

}  // namespace prnn::rnnt_cuda
