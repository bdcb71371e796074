// The choice of the backend that serves a call: the one place that decides it, for calls, queries and the library that
// stands in for cuDNN.
#pragma once

#include <string>

#include "rnn/plan/plan.h"

namespace prnn {

struct BackendChoice {
  bool resident = false;        // the resident kernels may serve the call
  bool cudnn = false;           // cuDNN may, where there is one
  bool resident_first = false;  // else cuDNN comes first
  std::string reason;           // one sentence unless the resident kernels come first
};

// For a problem and its plan, whose reason says so where the GPU has no row.
BackendChoice choose_backend(const RnnProblem& problem, const RnnPlan& plan, prnnRNNBackend_t wanted);

}  // namespace prnn
