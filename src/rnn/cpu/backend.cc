#include <algorithm>

#include "rnn/cpu/buffers.h"
#include "rnn/cpu/passes.h"

namespace prnn {
namespace {

template <class T>
size_t workspace_bytes(const RnnProblem& problem) {
  return std::max({ForwardWorkspace<T>(problem, false, nullptr).size, ForwardWorkspace<T>(problem, true, nullptr).size,
                   BackwardDataWorkspace<T>(problem, nullptr).size,
                   BackwardWeightsWorkspace<T>(problem, nullptr).size});
}

class CpuRnnBackend : public RnnBackend {
 public:
  size_t workspace_size(prnnHandle_t, const RnnProblem& p) const override {
    return p.type == PRNN_DATA_DOUBLE ? workspace_bytes<double>(p) : workspace_bytes<float>(p);
  }
  size_t reserve_size(prnnHandle_t, const RnnProblem& p, bool) const override {
    return p.type == PRNN_DATA_DOUBLE ? Reserve<double>(p, nullptr).size : Reserve<float>(p, nullptr).size;
  }
  void forward(prnnHandle_t, const RnnProblem& p, const RnnForwardArgs& args) const override {
    p.type == PRNN_DATA_DOUBLE ? cpu_rnn_forward<double>(p, args) : cpu_rnn_forward<float>(p, args);
  }
  void backward_data(prnnHandle_t, const RnnProblem& p, const RnnBackwardDataArgs& args) const override {
    p.type == PRNN_DATA_DOUBLE ? cpu_rnn_backward_data<double>(p, args) : cpu_rnn_backward_data<float>(p, args);
  }
  void backward_weights(prnnHandle_t, const RnnProblem& p, const RnnBackwardWeightsArgs& args) const override {
    p.type == PRNN_DATA_DOUBLE ? cpu_rnn_backward_weights<double>(p, args) : cpu_rnn_backward_weights<float>(p, args);
  }
};

}  // namespace

const RnnBackend& cpu_rnn_backend() {
  static const CpuRnnBackend backend;
  return backend;
}

}  // namespace prnn
