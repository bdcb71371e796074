// prnnQueryRNN and its relatives, which report plans and start nothing.
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <string>

#include "core/cpu/isa.h"
#include "core/cpu/threads.h"
#include "core/cuda/cuda_state.h"
#include "rnn/call.h"
#include "rnn/cuda/backend.h"
#include "rnn/plan/canonical.h"
#include "rnn/validate.h"

using namespace prnn;

namespace prnn {
namespace {

constexpr int64_t kLongSequence = 256;  // timesteps, of queries that name none

int to_int(int64_t value) { return static_cast<int>(std::min<int64_t>(value, INT_MAX)); }

template <size_t SIZE>
void set_text(char (&destination)[SIZE], const std::string& text) {
  std::snprintf(destination, SIZE, "%s", text.c_str());
}

// The layout of a pass, and how many layers a launch has in it.
struct PassReport {
  Engine engine;
  const ResidentShape& shape;
  int layers;
  std::string reason;  // why no more
};

PassReport report(const RnnPlan& plan, Pass pass) {
  const LayersTogether& together = plan.together[pass];
  if (together.exist()) return {together.shape.kernel->engine, together.shape, together.layers, ""};
  return {plan.engine(pass), plan.shape[pass], 1, together.reason};
}

prnnRNNInfo_t info_from_plan(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan,
                             const RnnPlan& inference) {
  const PassReport forward = report(plan, Pass::kForward), backward = report(plan, Pass::kBackward);
  prnnRNNInfo_t info{};
  info.supported = plan.runnable ? 1 : 0;
  info.backend = info.inferenceBackend = PRNN_PERSISTENT_BACKEND;
  set_text(info.device, row.name);
  info.measured = row.is_measured ? 1 : 0;
  info.largestHiddenSize = to_int(plan.largest_hidden);
  set_text(info.reason, plan.reason);
  if (plan.runnable) {
    set_text(info.forwardEngine, row_of(forward.engine).name);
    set_text(info.backwardEngine, row_of(backward.engine).name);
  }
  info.blocks = forward.shape.blocks;
  info.replicas = forward.shape.replicas;
  info.unitsPerBlock = forward.shape.units;
  info.batchPerPass = to_int(forward.shape.batch_per_pass());
  info.layersTogether = forward.layers;
  info.layersTogetherBackward = backward.layers;
  info.layersTogetherInference = inference.together.forward.layers;
  info.registerBytes = static_cast<size_t>(forward.shape.register_bytes);
  info.sharedBytes = static_cast<size_t>(forward.shape.shared_weight_bytes);
  if (forward.layers == 1) set_text(info.engineReason, why_not_faster(row, problem, plan));
  const bool backward_alone = forward.reason.empty() && !backward.reason.empty();
  set_text(info.layersReason, backward_alone ? "backward: " + backward.reason : forward.reason);
  return info;
}

// Bytes of a core's own cache. Where the system does not tell, a size that every core of the last decade has.
int64_t core_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : 256 * 1024;
}

prnnRNNInfo_t query_cpu(prnnContext& context, const prnnRNNStruct& rnn, const RnnProblem& problem) {
  prnnRNNInfo_t info{};
  const int threads = most_threads();
  // 16-bit weights are packed as float, but where pairs of bfloat16 numbers are multiplied.
  const bool as_they_are = problem.type == PRNN_DATA_BFLOAT16 && cpu_isa() >= Isa::kAvx512Bfloat16;
  const int64_t bytes_per_weight = problem.gates() * (problem.type == PRNN_DATA_DOUBLE ? 8 : as_they_are ? 2 : 4);
  const int64_t room = threads * core_cache_bytes();
  info.supported = 1;
  info.backend = info.inferenceBackend = PRNN_PERSISTENT_BACKEND;
  set_text(info.device, std::string("CPU ") + isa_name(cpu_isa()));
  info.blocks = threads;
  info.measured = 1;
  info.replicas = 1;
  info.unitsPerBlock = to_int((problem.hidden + threads - 1) / threads);
  info.batchPerPass = to_int(problem.max_batch());
  info.layersTogether = info.layersTogetherBackward = info.layersTogetherInference = 1;
  set_text(info.forwardEngine, "cpu");
  set_text(info.backwardEngine, "cpu");
  info.sharedBytes = static_cast<size_t>(bytes_per_weight * problem.hidden * problem.state());
  info.largestHiddenSize =
      to_int(problem.projection > 0 ? room / (bytes_per_weight * problem.projection)
                                    : std::lround(std::floor(std::sqrt(double(room) / double(bytes_per_weight)))));
  const CallPlan call = plan_call(&context, rnn, problem);
  info.workspaceSize = call.workspace;
  info.reserveSize = call.reserve;
  return info;
}

// Reports the plans of a training call and of inference on a GPU. find_backend(problem): what would run it, or a
// Failure that says why nothing.
template <class FindBackend>
prnnRNNInfo_t query_gpu(const GpuRow& row, const prnnRNNStruct& rnn, const RnnProblem& problem, const RnnPlan& plan,
                        const RnnPlan& inference, const FindBackend& find_backend) {
  prnnRNNInfo_t info = info_from_plan(row, problem, plan, inference);
  if (rnn.backend == PRNN_CUDNN_BACKEND) info.supported = 0;
  try {
    info.backend = find_backend(problem);
    info.inferenceBackend = find_backend(inference_of(problem));
    const bool on_cudnn = info.backend == PRNN_CUDNN_BACKEND || info.inferenceBackend == PRNN_CUDNN_BACKEND;
    if (plan.runnable && on_cudnn) {
      set_text(info.reason, rnn.backend == PRNN_CUDNN_BACKEND ? choose_backend(problem, plan, rnn.backend).reason
                                                              : plan.cudnn.sentence);
    }
  } catch (const Failure& failure) {
    set_text(info.reason, failure.what());
  }
  return info;
}

prnnRNNInfo_t query_cuda(prnnContext& context, const prnnRNNStruct& rnn, const RnnProblem& problem) {
  const auto find_backend = [&](const RnnProblem& of_call) {
    return cuda_rnn_backend(&context, rnn.backend, of_call)->kind();
  };
  const CudaState& state = cuda_state(context);
  prnnRNNInfo_t info{};
  if (state.row.name != nullptr) {
    info = query_gpu(state.row, rnn, problem, resident_backend(context, problem)->plan(),
                     resident_backend(context, inference_of(problem))->plan(), find_backend);
    if (info.supported != 0 && info.backend == PRNN_PERSISTENT_BACKEND) {
      const CallPlan call = plan_call(&context, rnn, problem);
      info.workspaceSize = call.workspace;
      info.reserveSize = call.reserve;
    }
    return info;
  }
  set_text(info.device, "GPU without a row");
  set_text(info.reason, state.no_row);
  try {
    info.backend = info.inferenceBackend = find_backend(problem);
  } catch (const Failure& failure) {
    set_text(info.reason, failure.what());
  }
  return info;
}

prnnRNNInfo_t query_row(const char* gpu, const prnnRNNStruct& rnn, const RnnProblem& problem) {
  const GpuRow* row = find_gpu_row(gpu);
  if (row == nullptr) {
    fail(PRNN_STATUS_BAD_PARAM, "gpu is \"%.64s\"; the GPU table has %s", gpu, gpu_row_names().c_str());
  }
  const RnnPlan plan = plan_rnn(*row, canonical(problem)), inference = plan_rnn(*row, canonical(inference_of(problem)));
  return query_gpu(*row, rnn, problem, plan, inference, [&](const RnnProblem& of_call) {
    const BackendChoice choice = choose_backend(of_call, plan, rnn.backend);
    // A GPU that CUDA no longer compiles for runs nothing.
    const bool runs_cudnn = choice.cudnn && !row->is_legacy();
    if (!choice.resident && !runs_cudnn) fail(PRNN_STATUS_NOT_SUPPORTED, "%s", choice.reason.c_str());
    return choice.resident_first || !runs_cudnn ? PRNN_PERSISTENT_BACKEND : PRNN_CUDNN_BACKEND;
  });
}

}  // namespace

prnnRNNInfo_t query_rnn(prnnHandle_t handle, const prnnRNNStruct& rnn, const RnnProblem& problem) {
  return handle->is_cpu() ? query_cpu(*handle, rnn, problem) : query_cuda(*handle, rnn, problem);
}

}  // namespace prnn

extern "C" prnnStatus_t prnnQueryRNN(prnnHandle_t handle, const prnnRNNDescriptor_t rnnDesc,
                                     const prnnTensorDescriptor_t xDesc, prnnRNNInfo_t* info) {
  return with_layer(handle, rnnDesc, [&](const prnnRNNStruct& rnn) {
    const RnnProblem problem = problem_of_steps(rnn, xDesc, kLongSequence);
    require_not_null(info, "info");
    *info = query_rnn(handle, rnn, problem);
  });
}

extern "C" prnnStatus_t prnnQueryRNNForGPU(const char* gpu, const prnnRNNDescriptor_t rnnDesc,
                                           const prnnTensorDescriptor_t xDesc, prnnRNNInfo_t* info) {
  return guarded(nullptr, [&] {
    require_not_null(gpu, "gpu");
    const prnnRNNStruct& rnn = require_rnn(rnnDesc);
    const RnnProblem problem = problem_of_steps(rnn, xDesc, kLongSequence);
    require_not_null(info, "info");
    *info = query_row(gpu, rnn, problem);
  });
}

extern "C" prnnStatus_t prnnQueryRNNSequence(prnnHandle_t handle, const char* gpu, const prnnRNNDescriptor_t rnnDesc,
                                             const int seqLength, const prnnTensorDescriptor_t* xDesc,
                                             prnnRNNInfo_t* info) {
  return guarded(gpu == nullptr ? handle : nullptr, [&] {
    if (gpu == nullptr) require_handle(handle);
    const prnnRNNStruct& rnn = require_rnn(rnnDesc);
    const RnnProblem problem = problem_from_sequence(rnn, seqLength, xDesc);
    require_not_null(info, "info");
    *info = gpu == nullptr ? query_rnn(handle, rnn, problem) : query_row(gpu, rnn, problem);
  });
}

extern "C" prnnStatus_t prnnDescribeGPU(prnnHandle_t handle, char* text, size_t size) {
  return guarded(handle, [&] {
    require_handle(handle);
    require_not_null(text, "text");
    if (handle->is_cpu()) fail(PRNN_STATUS_BAD_PARAM, "handle is one for the CPU; only a GPU has a row");
    const std::string line = describe_gpu(*handle);
    if (size <= line.size()) {
      fail(PRNN_STATUS_BAD_PARAM, "size is %zu; the line and its end take %zu bytes", size, line.size() + 1);
    }
    std::snprintf(text, size, "%s", line.c_str());
  });
}

extern "C" const char* prnnGetGPUName(int index) {
  const GpuRow* row = gpu_row(index);
  return row == nullptr ? nullptr : row->name;
}
