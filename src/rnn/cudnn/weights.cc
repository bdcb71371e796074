#include "rnn/cudnn/weights.h"

#include <algorithm>

#include "core/cuda/cudnn.h"
#include "core/descriptors.h"
#include "rnn/cudnn/device.h"

namespace prnn {
namespace {

// cuDNN says where a matrix lies by a pointer into the weight space; this is the space that it is asked about. Not
// NULL, so that NULL can say that there is no such matrix.
char* const kSpace = reinterpret_cast<char*>(uintptr_t{1} << 40);

}  // namespace

CudnnWeights::CudnnWeights(void* cudnn_handle, void* rnn, const RnnProblem& p, int64_t first_layer, int64_t layers) {
  const CudnnLibrary& cudnn = require_cudnn_library();
  require_cudnn(cudnn.get_weights_size(cudnn_handle, rnn, &size_), "to say the size of the weights");
  const CudnnObject matrix_desc(cudnn.create_tensor, cudnn.destroy_tensor);
  const CudnnObject bias_desc(cudnn.create_tensor, cudnn.destroy_tensor);
  const size_t element = type_size(p.type);
  const int matrices = 2 * static_cast<int>(p.gates());
  for (int64_t pseudo_layer = 0; pseudo_layer < layers * p.directions; ++pseudo_layer) {
    const int64_t layer = first_layer + pseudo_layer / p.directions, direction = pseudo_layer % p.directions;
    for (int i = 0; i < matrices + (p.projection > 0); ++i) {
      const int id = i < matrices ? i : kProjectionId;
      void *matrix = nullptr, *bias = nullptr;
      require_cudnn(cudnn.get_weights(cudnn_handle, rnn, static_cast<int32_t>(pseudo_layer), size_, kSpace, id,
                                      matrix_desc.get(), &matrix, bias_desc.get(), &bias),
                    "to say where the weights lie");
      const auto add = [&](const WeightBlock& block, void* found) {
        if (block.offset < 0) return;
        blocks_.push_back({block.offset * element, static_cast<size_t>(static_cast<char*>(found) - kSpace),
                           block.elements * element});
      };
      add(rnn_matrix(p, layer, direction, id), matrix);
      add(rnn_bias(p, layer, direction, id), bias);
    }
  }
  join_neighbours();
}

void CudnnWeights::join_neighbours() {
  std::sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.packed < b.packed; });
  size_t last = 0;
  for (size_t i = 1; i < blocks_.size(); ++i) {
    Block& before = blocks_[last];
    const Block& block = blocks_[i];
    if (block.packed == before.packed + before.size && block.space == before.space + before.size) {
      before.size += block.size;
    } else {
      blocks_[++last] = block;
    }
  }
  blocks_.resize(last + 1);
}

bool CudnnWeights::same_layout() const {
  return blocks_.size() == 1 && blocks_[0].packed == 0 && blocks_[0].space == 0 && blocks_[0].size == size_;
}

void CudnnWeights::to_cudnn(const void* packed, void* space, prnnStream_t stream) const {
  for (const Block& b : blocks_) {
    copy_on_device(static_cast<char*>(space) + b.space, static_cast<const char*>(packed) + b.packed, b.size, stream);
  }
}

void CudnnWeights::to_packed(const void* space, void* packed, prnnStream_t stream) const {
  for (const Block& b : blocks_) {
    copy_on_device(static_cast<char*>(packed) + b.packed, static_cast<const char*>(space) + b.space, b.size, stream);
  }
}

}  // namespace prnn
