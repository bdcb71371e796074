// The arrays that a call cuts from workspace and reserve space. Made with NULL they only count.
#pragma once

#include <vector>

#include "rnn/cudnn/stack.h"

namespace prnn {

struct CudnnReserve {
  CudnnReserve(const CudnnStack& stack, void* base);

  std::vector<char*> parts;    // cuDNN's own, for each part
  std::vector<char*> outputs;  // [rows, D P] of every part but the last
  std::vector<char*> inputs;   // those after dropout
  uint64_t* draw;              // of dropout: {seed, call}
  size_t size;
};

struct CudnnWorkspace {
  CudnnWorkspace(const CudnnStack& stack, const RnnProblem& problem, void* base);

  char* scratch;         // cuDNN's own
  char* weights;         // a weight space, where the packed weights are none
  char* between[2];      // [rows, D P]: the gradients between parts
  char* dx;              // [rows, I]: where the caller does not want it, but cuDNN does
  char* dropout_states;  // cuDNN's, of the forward pass: where dx is
  size_t size;
};

}  // namespace prnn
