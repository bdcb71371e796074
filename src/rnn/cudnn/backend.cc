#include "rnn/cudnn/backend.h"

#include <cuda_runtime_api.h>

#include "core/descriptors.h"
#include "rnn/cuda/layer/kernels.h"
#include "rnn/cuda/layer/run.h"
#include "rnn/cudnn/stack.h"

namespace prnn {
namespace {

// One call: the layers one after the other.
class CudnnRun {
 public:
  CudnnRun(prnnHandle_t handle, const RnnProblem& problem, void* workspace, void* reserve)
      : p(problem),
        cudnn(require_cudnn_library()),
        cudnn_handle_(cudnn_handle(*handle)),
        stream(handle->stream),
        stack(*handle, problem),
        work(problem, stack, workspace),
        kept(problem, stack, reserve) {
    check_earlier_calls(*handle);
  }

  void forward(const RnnForwardArgs& args) {
    const bool is_training = args.reserve != nullptr;
    if (is_training && drops()) {
      require_launch(run_begin_dropout(p.dropout.states, kept.draw, stream), "the dropout kernel");
    }
    const void* input = args.x;
    for (int64_t i = 0; i < p.layers; ++i) {
      const CudnnLayer& layer = stack.layer(i);
      const bool is_last = i + 1 == p.layers;
      void* const output = is_last ? args.y : is_training ? kept.outputs[i] : work.between[i % 2];
      load_weights(args.w, i);
      require_cudnn(cudnn.forward(cudnn_handle_, layer.rnn(), is_training, nullptr, layer.x(), input, layer.y(), output,
                                  layer.h(), h(args.hx, i), h(args.hy, i), layer.c(), c(args.cx, i), c(args.cy, i),
                                  layer.weights_size(), work.weights, layer.workspace_size(), work.scratch,
                                  is_training ? layer.reserve_size() : 0, is_training ? kept.layers[i] : nullptr),
                    "the forward pass");
      input = output;
      if (!is_last && is_training && drops()) {
        drop(i, output, kept.inputs[i]);
        input = kept.inputs[i];
      }
    }
  }

  void backward_data(const RnnBackwardDataArgs& args) {
    const void* dy = args.dy;
    for (int64_t i = p.layers - 1; i >= 0; --i) {
      const CudnnLayer& layer = stack.layer(i);
      void* const dx = i > 0 ? work.between[i % 2] : args.dx != nullptr ? args.dx : work.dx;
      load_weights(args.w, i);
      require_cudnn(
          cudnn.backward_data(cudnn_handle_, layer.rnn(), nullptr, layer.y(), output_of(args.y, i), dy, layer.x(), dx,
                              layer.h(), h(args.hx, i), h(args.dhy, i), h(args.dhx, i), layer.c(), c(args.cx, i),
                              c(args.dcy, i), c(args.dcx, i), layer.weights_size(), work.weights,
                              layer.workspace_size(), work.scratch, layer.reserve_size(), kept.layers[i]),
          "the gradient of the data");
      if (i > 0 && drops()) drop(i - 1, dx, dx);
      dy = dx;
    }
  }

  void backward_weights(const RnnBackwardWeightsArgs& args) {
    for (int64_t i = 0; i < p.layers; ++i) {
      const CudnnLayer& layer = stack.layer(i);
      load_weights(args.dw, i);  // cuDNN adds to what is there, as prnnRNNBackwardWeights does
      require_cudnn(cudnn.backward_weights(cudnn_handle_, layer.rnn(), kAdd, nullptr, layer.x(),
                                           i == 0 ? args.x : kept.inputs[i - 1], layer.h(), h(args.hx, i), layer.y(),
                                           output_of(args.y, i), layer.weights_size(), work.weights,
                                           layer.workspace_size(), work.scratch, layer.reserve_size(), kept.layers[i]),
                    "the gradient of the weights");
      layer.copy_weights(cudnn_handle_, p, i, args.dw, work.weights, true, stream);
    }
  }

 private:
  static constexpr int kAdd = 0;

  bool drops() const { return p.dropout.probability > 0 && p.layers > 1; }
  void drop(int64_t layer, const void* in, void* out) const {
    const int64_t count = p.rows * p.directions * p.state();
    require_launch(run_dropout(p.type, p.dropout.probability, kept.draw, layer, count, in, out, stream),
                   "the dropout kernel");
  }
  void load_weights(const void* packed, int64_t layer) const {
    stack.layer(layer).copy_weights(cudnn_handle_, p, layer, const_cast<void*>(packed), work.weights, false, stream);
  }
  const void* output_of(const void* y, int64_t layer) const { return layer + 1 == p.layers ? y : kept.outputs[layer]; }

  // The part of a layer's directions in hx, cx and their like; NULL stays NULL.
  template <class Pointer>
  Pointer h(Pointer base, int64_t layer) const {
    return states(base, layer, p.state());
  }
  template <class Pointer>
  Pointer c(Pointer base, int64_t layer) const {
    return states(base, layer, p.hidden);
  }
  const void* states(const void* base, int64_t layer, int64_t width) const {
    if (base == nullptr) return nullptr;
    return static_cast<const char*>(base) + layer * p.directions * p.max_batch() * width * type_size(p.type);
  }
  void* states(void* base, int64_t layer, int64_t width) const {
    return const_cast<void*>(states(static_cast<const void*>(base), layer, width));
  }

  const RnnProblem& p;
  const CudnnLibrary& cudnn;
  void* cudnn_handle_;
  cudaStream_t stream;
  CudnnStack stack;
  CudnnWorkspace work;
  CudnnReserve kept;
};

class CudnnBackend : public RnnBackend {
 public:
  size_t workspace_size(prnnHandle_t handle, const RnnProblem& problem) const override {
    return CudnnWorkspace(problem, CudnnStack(*handle, problem), nullptr).size;
  }
  size_t reserve_size(prnnHandle_t handle, const RnnProblem& problem) const override {
    return CudnnReserve(problem, CudnnStack(*handle, problem), nullptr).size;
  }
  void forward(prnnHandle_t handle, const RnnProblem& problem, const RnnForwardArgs& args) const override {
    CudnnRun(handle, problem, args.workspace, args.reserve).forward(args);
  }
  void backward_data(prnnHandle_t handle, const RnnProblem& problem, const RnnBackwardDataArgs& args) const override {
    CudnnRun(handle, problem, args.workspace, args.reserve).backward_data(args);
  }
  void backward_weights(prnnHandle_t handle, const RnnProblem& problem,
                        const RnnBackwardWeightsArgs& args) const override {
    CudnnRun(handle, problem, args.workspace, args.reserve).backward_weights(args);
  }
};

}  // namespace

const RnnBackend& require_cudnn_backend() {
  static const CudnnBackend backend;
  require_cudnn_library();
  return backend;
}

}  // namespace prnn
