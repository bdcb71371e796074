// Where the arrays of duration.h lie in workspace and reserve space.
#pragma once

#include "core/cuda/arena.h"
#include "rnnt/cuda/duration.h"

namespace prnn::duration_cuda {

// The recursion's inputs and results.
template <class Real>
void take_scores(const Problem& problem, Arena& arena, Lattices<Real>& lattices) {
  lattices.sequences = arena.take<Sequence>(problem.batch);
  lattices.totals = arena.take<Scaled<Real>>(problem.arcs.lattices * problem.batch);
  lattices.scores = arena.take<Real>(problem.arcs.count() * problem.nodes());
}

// The recursion's scratch arrays.
template <class Real>
void take_sums(const Problem& problem, Arena& arena, bool with_beta, Lattices<Real>& lattices) {
  const int64_t nodes = problem.arcs.lattices * problem.nodes();
  lattices.alpha = arena.take<Scaled<Real>>(nodes);
  if (with_beta) lattices.beta = arena.take<Scaled<Real>>(nodes);
}

template <class Real>
struct Reserve {
  Sequence* sequences;
  Shares<Real> shares;

  Reserve(const Problem& problem, Arena& arena) {
    sequences = arena.take<Sequence>(problem.batch);
    shares.records = arena.take<Real>(problem.record_size() * problem.cells());
    shares.token_normalisers = arena.take<Real>(problem.cells());
    shares.duration_normalisers = problem.arcs.entries > 0 ? arena.take<Real>(problem.cells()) : nullptr;
  }
};

}  // namespace prnn::duration_cuda
