// Where cuDNN's weight space has the matrices and biases of prnn's packed weights.
#pragma once

#include <vector>

#include "cudnn_standin/configuration.h"
#include "cudnn_standin/prnn_library.h"

namespace prnn_cudnn {

// Bytes `size` at `prnn` in the packed weights that lie at `cudnn` in the weight space.
struct WeightBlock {
  size_t prnn, cudnn, size;
};

struct WeightLayout {
  size_t packed_size = 0, space_size = 0;  // bytes of either
  std::vector<WeightBlock> blocks;         // as few as possible, by their place in the packed weights
  bool covers = false;                     // the blocks are all of the packed weights; else the rest, biases, are zeros
  bool is_same = false;                    // one block, so that the weight space serves as packed weights
  size_t same_at = 0;                      // and there it begins
};

// Merges blocks that lie one after the other in both, and sees what they cover.
void finish(WeightLayout& layout);

// Asks both libraries. Throws a Failure where they disagree about the size of a matrix.
WeightLayout read_weight_layout(const Cudnn& cudnn, const Prnn& prnn, prnnHandle_t prnn_handle, void* cudnn_handle,
                                void* cudnn_rnn, prnnRNNDescriptor_t prnn_rnn, const Configuration& configuration);

}  // namespace prnn_cudnn
