#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>

#include "core/cpu/half.h"
#include "core/enums.h"
#include "core/status.h"
#include "rnn/cpu/buffers.h"
#include "rnn/cpu/half_passes.h"
#include "rnn/cpu/layer_norm/passes.h"
#include "rnn/cpu/passes.h"

namespace prnn {
namespace {

// Asks for large pages in a space that is large enough to be pages of its own, which come back from the system with
// each call. Whether there are any is the system's to say; without them the call takes longer and is right.
void use_large_pages([[maybe_unused]] void* space, [[maybe_unused]] size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr size_t kLeast = size_t{32} << 20, kPage = size_t{2} << 20;
  if (bytes < kLeast) return;
  const uintptr_t address = reinterpret_cast<uintptr_t>(space);
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage, end = (address + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

class CpuRnnBackend : public RnnBackend {
 public:
  size_t workspace_size(prnnHandle_t, const RnnProblem& p) const override {
    if (p.takes_gates()) return layer_norm_lstm_workspace_cpu(p);
    switch (p.type) {
      case PRNN_DATA_FLOAT: return rnn_workspace_size<float>(p);
      case PRNN_DATA_DOUBLE: return rnn_workspace_size<double>(p);
      default: return half_rnn_workspace_size(p);
    }
  }
  size_t reserve_size(prnnHandle_t, const RnnProblem& p, bool keeps_gates) const override {
    if (p.takes_gates()) return layer_norm_lstm_reserve_cpu(p);
    switch (p.type) {
      case PRNN_DATA_FLOAT: return Reserve<float>(p, keeps_gates, nullptr).size;
      case PRNN_DATA_DOUBLE: return Reserve<double>(p, keeps_gates, nullptr).size;
      default: return half_rnn_reserve_size(p, keeps_gates);
    }
  }
  void forward(prnnHandle_t handle, const RnnProblem& p, const RnnForwardArgs& args) const override {
    use_large_pages(args.workspace, workspace_size(handle, p));
    if (args.reserve != nullptr) use_large_pages(args.reserve, reserve_size(handle, p, args.keeps_gates));
    if (p.takes_gates()) return layer_norm_lstm_forward_cpu(p, args);
    switch (p.type) {
      case PRNN_DATA_FLOAT: return cpu_rnn_forward<float>(p, args);
      case PRNN_DATA_DOUBLE: return cpu_rnn_forward<double>(p, args);
      case PRNN_DATA_HALF: return half_rnn_forward<Half>(p, args);
      case PRNN_DATA_BFLOAT16: return half_rnn_forward<Bfloat16>(p, args);
    }
  }
  void backward_data(prnnHandle_t handle, const RnnProblem& p, const RnnBackwardDataArgs& args) const override {
    use_large_pages(args.workspace, workspace_size(handle, p));
    switch (p.type) {
      case PRNN_DATA_FLOAT: return cpu_rnn_backward_data<float>(p, args);
      case PRNN_DATA_DOUBLE: return cpu_rnn_backward_data<double>(p, args);
      case PRNN_DATA_HALF: return half_rnn_backward_data<Half>(p, args);
      case PRNN_DATA_BFLOAT16: return half_rnn_backward_data<Bfloat16>(p, args);
    }
  }
  void backward_weights(prnnHandle_t handle, const RnnProblem& p, const RnnBackwardWeightsArgs& args) const override {
    use_large_pages(args.workspace, workspace_size(handle, p));
    switch (p.type) {
      case PRNN_DATA_FLOAT: return cpu_rnn_backward_weights<float>(p, args);
      case PRNN_DATA_DOUBLE: return cpu_rnn_backward_weights<double>(p, args);
      case PRNN_DATA_HALF: return half_rnn_backward_weights<Half>(p, args);
      case PRNN_DATA_BFLOAT16: return half_rnn_backward_weights<Bfloat16>(p, args);
    }
  }
  void backward(prnnHandle_t handle, const RnnProblem& p, const RnnBackwardArgs& args) const override {
    use_large_pages(args.workspace, workspace_size(handle, p));
    layer_norm_lstm_backward_cpu(p, args);
  }
};

}  // namespace

SharedRnnBackend cpu_rnn_backend(const RnnProblem& problem) {
  if (problem.takes_gates() && problem.type != PRNN_DATA_FLOAT && problem.type != PRNN_DATA_DOUBLE) {
    fail(PRNN_STATUS_NOT_SUPPORTED,
         "dataType is %s; on the CPU an LSTM with PRNN_GATES_INPUT takes PRNN_DATA_FLOAT and PRNN_DATA_DOUBLE",
         name_of(problem.type));
  }
  static const SharedRnnBackend backend = std::make_shared<const CpuRnnBackend>();
  return backend;
}

}  // namespace prnn
