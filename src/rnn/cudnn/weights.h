// Where weights lie: in prnn's packed weights (persistent_rnn.h), and in cuDNN's weight space.
#pragma once

#include <cstdint>
#include <vector>

#include "rnn/problem.h"

namespace prnn {

// The weights of some layers of a problem, and the weight space of the cuDNN descriptor that runs these layers.
class CudnnWeights {
 public:
  CudnnWeights(void* cudnn_handle, void* rnn, const RnnProblem& problem, int64_t first_layer, int64_t layers);

  size_t size() const { return size_; }  // bytes of the weight space
  // Whether the packed weights are a weight space as they are.
  bool same_layout() const;

  void to_cudnn(const void* packed, void* space, prnnStream_t stream) const;
  void to_packed(const void* space, void* packed, prnnStream_t stream) const;

 private:
  // Bytes that lie one after the other in both.
  struct Block {
    size_t packed, space, size;
  };

  void join_neighbours();

  std::vector<Block> blocks_;
  size_t size_ = 0;
};

}  // namespace prnn
