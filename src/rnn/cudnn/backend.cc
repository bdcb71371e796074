#include "rnn/cudnn/backend.h"

#include "core/cuda/cuda_state.h"
#include "core/descriptors.h"
#include "rnn/cudnn/device.h"
#include "rnn/cudnn/memory.h"
#include "rnn/cudnn/stack.h"

namespace prnn {
namespace {

constexpr uintptr_t kWeightAlignment = 16;

// One call: cuDNN runs the stack, or its parts one after the other.
class CudnnRun {
 public:
  CudnnRun(prnnHandle_t handle, const RnnProblem& problem, void* workspace, void* reserve)
      : p(problem),
        context(*handle),
        cudnn(require_cudnn_library()),
        cudnn_handle_(cudnn_handle(*handle)),
        stack(cudnn_stack(*handle, problem)),
        work(stack, problem, workspace),
        kept(stack, reserve) {
    check_earlier_calls(*handle);
  }

  void forward(const RnnForwardArgs& args) {
    const bool is_training = args.reserve != nullptr;
    if (is_training && p.dropout.probability > 0) begin_dropout_of_call();
    const void* input = args.x;
    for (size_t i = 0; i < stack.parts.size(); ++i) {
      const CudnnLayers& layers = *stack.parts[i].layers;
      const CudnnSequences& s = stack.parts[i].sequences;
      void* const output = is_last(i) ? args.y : kept.outputs[i];  // inference has one part
      require_cudnn(
          cudnn.forward(cudnn_handle_, layers.rnn(), is_training, nullptr, s.x(), input, s.y(), output, s.h(),
                        h(args.hx, layers), h(args.hy, layers), s.c(), c(args.cx, layers), c(args.cy, layers),
                        layers.weights().size(), weights(layers, args.w, "w"), s.workspace_size(), work.scratch,
                        is_training ? s.reserve_size() : 0, is_training ? kept.parts[i] : nullptr),
          "the forward pass");
      if (is_last(i)) break;
      drop_output(i, output, kept.inputs[i]);
      input = kept.inputs[i];
    }
  }

  void backward_data(const RnnBackwardDataArgs& args) {
    const void* dy = args.dy;
    for (size_t i = stack.parts.size(); i-- > 0;) {
      const CudnnLayers& layers = *stack.parts[i].layers;
      const CudnnSequences& s = stack.parts[i].sequences;
      void* const dx = i > 0 ? work.between[i % 2] : args.dx != nullptr ? args.dx : work.dx;
      require_cudnn(cudnn.backward_data(cudnn_handle_, layers.rnn(), nullptr, s.y(), output_of(args.y, i), dy, s.x(),
                                        dx, s.h(), h(args.hx, layers), h(args.dhy, layers), h(args.dhx, layers), s.c(),
                                        c(args.cx, layers), c(args.dcy, layers), c(args.dcx, layers),
                                        layers.weights().size(), weights(layers, args.w, "w"), s.workspace_size(),
                                        work.scratch, s.reserve_size(), kept.parts[i]),
                    "the gradient of the data");
      if (i > 0) drop_output(i - 1, dx, dx);
      dy = dx;
    }
  }

  void backward_weights(const RnnBackwardWeightsArgs& args) {
    for (size_t i = 0; i < stack.parts.size(); ++i) {
      const CudnnLayers& layers = *stack.parts[i].layers;
      const CudnnSequences& s = stack.parts[i].sequences;
      void* const dw = weights(layers, args.dw, "dw");  // to which cuDNN adds, as prnnRNNBackwardWeights does
      require_cudnn(cudnn.backward_weights(cudnn_handle_, layers.rnn(), kAdd, nullptr, s.x(),
                                           i == 0 ? args.x : kept.inputs[i - 1], s.h(), h(args.hx, layers), s.y(),
                                           output_of(args.y, i), layers.weights().size(), dw, s.workspace_size(),
                                           work.scratch, s.reserve_size(), kept.parts[i]),
                    "the gradient of the weights");
      if (dw != args.dw) layers.weights().to_packed(dw, args.dw, context.stream);
    }
  }

 private:
  static constexpr int kAdd = 0;

  bool is_last(size_t part) const { return part + 1 == stack.parts.size(); }
  const void* output_of(const void* y, size_t part) const { return is_last(part) ? y : kept.outputs[part]; }

  void begin_dropout_of_call() {
    begin_dropout(p.dropout.states, kept.draw, context.stream);
    if (stack.dropout_states_size == 0) return;
    seed_cudnn_dropout(kept.draw, work.dropout_states, stack.dropout_states_size, context.stream);
    stack.parts[0].layers->draw_from(context, work.dropout_states, stack.dropout_states_size);
  }
  void drop_output(size_t part, const void* in, void* out) const {
    const int64_t count = p.rows * p.directions * p.state();
    drop(p.type, p.dropout.probability, kept.draw, static_cast<int64_t>(part), count, in, out, context.stream);
  }

  // The layers' weight space: the packed weights, or a copy of them.
  void* weights(const CudnnLayers& layers, const void* packed, const char* name) const {
    if (layers.weights().same_layout()) {
      if (reinterpret_cast<uintptr_t>(packed) % kWeightAlignment != 0) {
        fail(PRNN_STATUS_NOT_SUPPORTED, "%s is at %p; cuDNN takes weights that are aligned to %d bytes", name, packed,
             static_cast<int>(kWeightAlignment));
      }
      return const_cast<void*>(packed);
    }
    layers.weights().to_cudnn(packed, work.weights, context.stream);
    return work.weights;
  }

  // The layers' part of hx, cx and their like; NULL stays NULL.
  template <class Pointer>
  Pointer h(Pointer base, const CudnnLayers& layers) const {
    return states(base, layers, p.state());
  }
  template <class Pointer>
  Pointer c(Pointer base, const CudnnLayers& layers) const {
    return states(base, layers, p.hidden);
  }
  const void* states(const void* base, const CudnnLayers& layers, int64_t width) const {
    if (base == nullptr) return nullptr;
    return static_cast<const char*>(base) + layers.first() * p.directions * p.max_batch() * width * type_size(p.type);
  }
  void* states(void* base, const CudnnLayers& layers, int64_t width) const {
    return const_cast<void*>(states(static_cast<const void*>(base), layers, width));
  }

  const RnnProblem& p;
  prnnContext& context;
  const CudnnLibrary& cudnn;
  void* cudnn_handle_;
  CudnnStack& stack;
  CudnnWorkspace work;
  CudnnReserve kept;
};

class CudnnBackend : public RnnBackend {
 public:
  prnnRNNBackend_t kind() const override { return PRNN_CUDNN_BACKEND; }
  size_t workspace_size(prnnHandle_t handle, const RnnProblem& problem) const override {
    return CudnnWorkspace(cudnn_stack(*handle, problem), problem, nullptr).size;
  }
  size_t reserve_size(prnnHandle_t handle, const RnnProblem& problem, bool) const override {
    return CudnnReserve(cudnn_stack(*handle, problem), nullptr).size;
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

SharedRnnBackend require_cudnn_backend() {
  static const SharedRnnBackend backend = std::make_shared<const CudnnBackend>();
  require_cudnn_library();
  return backend;
}

}  // namespace prnn
