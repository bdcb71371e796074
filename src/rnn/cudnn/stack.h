// A stack of layers as cuDNN runs it: one layer after the other, with dropout, the packed weights and the lengths of
// the sequences as everywhere in prnn. The arrays that a call cuts from workspace and reserve space are here too.
#pragma once

#include <memory>
#include <vector>

#include "core/cuda/cudnn.h"
#include "rnn/problem.h"

namespace prnn {

// One layer of a problem, both directions: cuDNN's descriptors and the sizes that follow from them.
class CudnnLayer {
 public:
  CudnnLayer(prnnContext& context, const RnnProblem& problem, int64_t layer, const std::vector<int>& lengths);

  // The weights of layer `layer` of the packed ones to cuDNN's layout; `to_packed`: the other way.
  void copy_weights(void* cudnn_handle, const RnnProblem& problem, int64_t layer, void* packed, void* weights,
                    bool to_packed, prnnStream_t stream) const;

  void* rnn() const { return rnn_.get(); }
  void* x() const { return x_.get(); }
  void* y() const { return y_.get(); }
  void* h() const { return h_.get(); }
  void* c() const { return c_.get(); }
  size_t workspace_size() const { return workspace_size_; }
  size_t reserve_size() const { return reserve_size_; }
  size_t weights_size() const { return weights_size_; }

 private:
  CudnnObject rnn_, x_, y_, h_, c_;
  size_t workspace_size_ = 0, reserve_size_ = 0, weights_size_ = 0;
};

// Descriptors of all layers. Those above the first are alike and share theirs.
class CudnnStack {
 public:
  CudnnStack(prnnContext& context, const RnnProblem& problem);
  const CudnnLayer& layer(int64_t index) const { return index == 0 ? *first_ : *above_; }

 private:
  std::unique_ptr<CudnnLayer> first_, above_;  // above_: NULL for one layer
};

// The reserve space. Made with NULL it only counts.
struct CudnnReserve {
  CudnnReserve(const RnnProblem& problem, const CudnnStack& stack, void* base);

  std::vector<char*> layers;   // cuDNN's own, one a layer
  std::vector<char*> outputs;  // [rows, D P] of every layer but the last
  std::vector<char*> inputs;   // those after dropout; the outputs themselves without
  uint64_t* draw;              // of dropout: {seed, call}
  size_t size;
};

struct CudnnWorkspace {
  CudnnWorkspace(const RnnProblem& problem, const CudnnStack& stack, void* base);

  char* scratch;     // cuDNN's own
  char* weights;     // of one layer, in cuDNN's layout, or their gradients
  char* between[2];  // [rows, D P]: inference's outputs, or the gradients between layers
  char* dx;          // [rows, I]: where the caller does not want it, but cuDNN does
  size_t size;
};

}  // namespace prnn
