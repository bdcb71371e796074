// The CUDA part of a handle. Two implementations: cuda_state.cc (built with CUDA) and no_cuda.cc (built without), of
// which the build takes one.
#pragma once

#include <memory>
#include <string>

#include "core/descriptors.h"
#include "core/gpu_table.h"
#include "core/handle.h"

namespace prnn {

struct CublasState;
struct CudnnState;

// The object that prnnContext::cuda points to.
struct CudaState {
  GpuRow row{};        // what calls plan for; its name is NULL if there is none
  std::string no_row;  // then: why
  // Host memory that kernels can write. A resident kernel that gives up sets it.
  int* timed_out = nullptr;
  int* timed_out_on_device = nullptr;  // the same, as kernels address it
  CublasState* cublas = nullptr;       // NULL without cuBLAS. See core/cuda/cublas.h
  std::shared_ptr<void> plans;         // of the last problems; see rnn/cuda/backend.cc
  CudnnState* cudnn = nullptr;         // NULL until a call needs it. See core/cuda/cudnn.h
};

inline CudaState& cuda_state(const prnnContext& context) { return *static_cast<CudaState*>(context.cuda); }

// Makes `context` a handle on the current CUDA device, or throws NOT_SUPPORTED (no CUDA in this build) or
// NOT_INITIALIZED (no driver, no GPU).
void init_cuda_state(prnnContext& context);
void destroy_cuda_state(prnnContext& context);

// Enqueues the write of `initial` to `states`, device memory, on the handle's stream.
void write_dropout_states(prnnContext& context, void* states, const DropoutStates& initial);

// The row that the handle's calls plan for: the GPU table's for its device, or the one that PRNN_GPU_ROW names, within
// what the device has and this build has code for. Throws ARCH_MISMATCH if there is none.
const GpuRow& cuda_gpu_row(const prnnContext& context);

// The handle's GPU as a line of gpu_table.cc.
std::string describe_gpu(const prnnContext& context);

// Throws EXECUTION_FAILED if a kernel of an earlier call on the handle gave up (and forgets about it). Does not wait.
void check_earlier_calls(prnnContext& context);

}  // namespace prnn
