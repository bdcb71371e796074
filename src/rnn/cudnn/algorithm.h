// Which of cuDNN's algorithms runs a stack.
#pragma once

#include "rnn/problem.h"

namespace prnn {

// cudnnRNNAlgo_t
enum CudnnAlgorithm : int { kStandard = 0, kPersistentStatic = 1, kPersistentSmallH = 3 };

// The backward calls read what any algorithm's forward call has written.
struct CudnnAlgorithms {
  CudnnAlgorithm forward = kStandard, backward = kStandard;

  bool operator==(const CudnnAlgorithms& other) const { return forward == other.forward && backward == other.backward; }
};

// What of a GPU decides.
struct CudnnDevice {
  int arch = 0;  // 10 major + minor
  int multiprocessors = 0;
};

CudnnAlgorithms choose_algorithms(const CudnnDevice& device, const RnnProblem& problem);

}  // namespace prnn
