// Which of cuDNN's algorithms runs a stack.
#pragma once

#include "rnn/problem.h"

namespace prnn {

// cudnnRNNAlgo_t
enum CudnnAlgorithm : int { kStandard = 0, kPersistentStatic = 1, kPersistentSmallH = 3 };

// The properties of a GPU that decide.
struct CudnnDevice {
  int arch = 0;  // 10 major + minor
  int multiprocessors = 0;
};

CudnnAlgorithm choose_algorithm(const CudnnDevice& device, const RnnProblem& problem);

}  // namespace prnn
