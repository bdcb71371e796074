#include "core/cuda/cuda_state.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/cuda/cublas.h"
#include "core/cuda/cudnn.h"
#include "core/cuda/device_probe.h"
#include "core/cuda/dropout_states.h"
#include "core/cuda/launch.h"

namespace prnn {
namespace {

// For what a handle is made of.
void require_ready(cudaError_t error, const char* what) { require_success(error, PRNN_STATUS_NOT_INITIALIZED, what); }

// The table's row, cut down to what the device has and what this build has code for.
void set_row(CudaState& state, const cudaDeviceProp& properties) {
  const int code = probe_code_arch();
  if (code == 0) {
    state.no_row = "this build of prnn has no code for compute capability " + std::to_string(properties.major) + "." +
                   std::to_string(properties.minor) + "; name it to the build (cuda_arch)";
    return;
  }
  const char* const wanted = std::getenv("PRNN_GPU_ROW");
  const bool is_forced = wanted != nullptr && wanted[0] != '\0';
  const GpuRow* const found =
      is_forced ? find_gpu_row(wanted) : match_gpu_row(properties.name, 10 * properties.major + properties.minor);
  if (found == nullptr && is_forced) {
    fail(PRNN_STATUS_BAD_PARAM, "PRNN_GPU_ROW is \"%s\"; the GPU table has %s", wanted, gpu_row_names().c_str());
  }
  if (found == nullptr) {
    state.no_row = "the GPU table has no row for compute capability " + std::to_string(properties.major) + "." +
                   std::to_string(properties.minor);
    return;
  }
  GpuRow& row = state.row = *found;
  const int sms = properties.multiProcessorCount;
  row.arch = std::min(row.arch, code);
  row.multiprocessors = is_forced ? std::min(row.multiprocessors, sms) : sms;
  row.shared_bytes = std::min<int64_t>(row.shared_bytes, properties.sharedMemPerBlockOptin);
  row.largest_cluster = std::min(row.largest_cluster, largest_cluster_of(row.arch));
  row.has_wgmma = row.has_wgmma && has_wgmma_of(row.arch);
  for (int cluster : {2, 3, 4}) {
    int& blocks = row.cluster_blocks[cluster - 2];
    const int own = row.largest_cluster > 1
                        ? probe_cluster_blocks(cluster, sms, static_cast<int>(properties.sharedMemPerBlockOptin))
                        : 0;
    blocks = is_forced ? std::min(blocks, own) : own;
  }
}

}  // namespace

void init_cuda_state(prnnContext& context) {
  int device = 0;
  cudaDeviceProp properties;
  require_ready(cudaGetDevice(&device), "there is no usable CUDA device");
  require_ready(cudaGetDeviceProperties(&properties, device), "the current CUDA device cannot be asked what it is");
  auto made = std::make_unique<CudaState>();
  set_row(*made, properties);
  context.cuda = made.release();
  context.device = device;
  try {
    CudaState& state = cuda_state(context);
    require_ready(cudaHostAlloc(reinterpret_cast<void**>(&state.timed_out), sizeof(int),
                                cudaHostAllocPortable | cudaHostAllocMapped),
                  "host memory that the GPU can write could not be had");
    *state.timed_out = 0;
    require_ready(cudaHostGetDevicePointer(reinterpret_cast<void**>(&state.timed_out_on_device), state.timed_out, 0),
                  "host memory could not be mapped for the GPU");
    create_cublas(context);
  } catch (...) {
    destroy_cuda_state(context);
    throw;
  }
}

void destroy_cuda_state(prnnContext& context) {
  destroy_cudnn(context);
  destroy_cublas(context);
  cudaFreeHost(cuda_state(context).timed_out);
  delete &cuda_state(context);
  context.cuda = nullptr;
}

void write_dropout_states(prnnContext& context, void* states, const DropoutStates& initial) {
  run_write_dropout_states(static_cast<DropoutStates*>(states), initial, context.stream);
}

const GpuRow& cuda_gpu_row(const prnnContext& context) {
  const GpuRow& row = cuda_state(context).row;
  if (row.name == nullptr) fail(PRNN_STATUS_ARCH_MISMATCH, "%s", cuda_state(context).no_row.c_str());
  return row;
}

std::string describe_gpu(const prnnContext& context) {
  cudaDeviceProp properties;
  require_ready(cudaGetDeviceProperties(&properties, context.device), "the CUDA device cannot be asked what it is");
  const int arch = 10 * properties.major + properties.minor, sms = properties.multiProcessorCount;
  const int shared = static_cast<int>(properties.sharedMemPerBlockOptin);
  const std::string vendor = "NVIDIA ", full_name = properties.name;
  const std::string name = full_name.rfind(vendor, 0) == 0 ? full_name.substr(vendor.size()) : full_name;
  int blocks[3] = {0, 0, 0};
  for (int cluster : {2, 3, 4}) {
    if (largest_cluster_of(arch) > 1) blocks[cluster - 2] = probe_cluster_blocks(cluster, sms, shared);
  }
  char text[256];
  std::snprintf(text, sizeof text, "{\"%s\", %d, %d, %d * kKiB, %d * kKiB, %d * kMiB, {%d, %d, %d}, %d, %s, true},",
                name.c_str(), arch, sms, properties.regsPerMultiprocessor / 256, shared / 1024,
                properties.l2CacheSize >> 20, blocks[0], blocks[1], blocks[2], largest_cluster_of(arch),
                has_wgmma_of(arch) ? "true" : "false");
  return text;
}

void check_earlier_calls(prnnContext& context) {
  volatile int* timed_out = cuda_state(context).timed_out;
  if (*timed_out == 0) return;
  *timed_out = 0;
  fail(PRNN_STATUS_EXECUTION_FAILED,
       "a resident kernel of an earlier call waited in vain for its other blocks and gave up; that call's outputs are "
       "not valid");
}

}  // namespace prnn
