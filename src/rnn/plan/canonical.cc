#include "rnn/plan/canonical.h"

#include <algorithm>
#include <iterator>

#include "rnn/plan/chunked_steps.h"
#include "rnn/plan/faster.h"
#include "rnn/plan/plan.h"
#include "rnn/plan/side_by_side.h"

namespace prnn {
namespace {

static_assert(kSideBySideSteps <= kManySteps);

// Stands for all of a caller's pointers.
unsigned char mark;

template <class T>
T* marked(T* pointer) {
  return pointer == nullptr ? nullptr : reinterpret_cast<T*>(&mark);
}

}  // namespace

int64_t canonical_steps(int64_t steps) {
  if (steps <= kManySteps) return steps;
  if (steps > kMostCudnnSteps) return kMostCudnnSteps + 1;
  return *std::prev(std::upper_bound(std::begin(kChunkedSteps), std::end(kChunkedSteps), steps));
}

RnnProblem canonical(const RnnProblem& problem) {
  RnnProblem p = problem;
  p.frozen = 0;
  p.reverse = false;
  p.epsilon = 0;
  p.gives_dx = true;
  p.dropout = {p.dropout.probability > 0 ? 0.5f : 0, nullptr};
  const bool has_states = (problem.needs() & Needs::kResetStates) != 0;
  p.extras = {};
  p.extras.reset = marked(problem.extras.reset);
  p.extras.cells = marked(problem.extras.cells);
  p.extras.dcells = marked(problem.extras.dcells);
  p.extras.resetHx = has_states ? &mark : nullptr;
  p.masks.recurrent = marked(problem.masks.recurrent);
  p.masks.zoneout = marked(problem.masks.zoneout);
  p.masks.zoneoutExpectation = problem.masks.zoneoutExpectation > 0 ? 0.5 : 0;
  const int64_t batch = problem.max_batch();
  const bool varies = batch != problem.batch.back();
  p.batch.assign(static_cast<size_t>(canonical_steps(problem.steps())), batch);
  p.rows = p.steps() * batch - varies;
  if (varies) p.batch.back() = batch - 1;
  if (problem.rows > kMostRows) p.rows = problem.rows;
  return p;
}

}  // namespace prnn
