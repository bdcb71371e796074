// Matrix products on a fake GPU: cublas_calls STEP... makes them with the libcublas that the loader finds and prints
// what comes of them. A number is a product on that stream, a negative one several; "capture" and "end" are around
// products of a graph. FAIL names functions of the runtime that fail.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/cuda/cublas.h"
#include "core/cuda/cuda_state.h"
#include "core/status.h"

namespace {

bool is_made = false, is_captured = false;
cudaError_t last_error = cudaSuccess;

void print(const char* name, cudaStream_t stream) {
  if (is_made) std::printf("%s %zu\n", name, reinterpret_cast<size_t>(stream));
}

cudaError_t result_of(const char* function) {
  const char* const failing = std::getenv("FAIL");
  const bool fails = is_made && failing != nullptr && std::strstr(failing, function) != nullptr;
  if (fails) last_error = cudaErrorUnknown;
  return fails ? cudaErrorUnknown : cudaSuccess;
}

}  // namespace

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t) { return "of a fake"; }
cudaError_t cudaMallocBytes(void** memory, size_t) {
  const char* const failing = std::getenv("FAIL");
  if (failing != nullptr && std::strstr(failing, "cudaMalloc") != nullptr) return last_error = cudaErrorUnknown;
  *memory = std::malloc(1);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = is_captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t, unsigned) {
  print("wait", stream);
  return result_of("cudaStreamWaitEvent");
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t stream) {
  print("record", stream);
  return result_of("cudaEventRecord");
}

using namespace prnn;

int main(int count, char** steps) {
  prnnContext context{};
  CudaState state;
  context.cuda = &state;
  try {
    create_cublas(context);
  } catch (const Failure& failure) {
    std::printf("status %d: %s, %d left\n", failure.status(), failure.what(), last_error);
    return 0;
  }
  is_made = true;
  float values[4] = {};
  const MatrixView view{values, PRNN_DATA_FLOAT, 2};
  for (int i = 1; i < count; ++i) {
    const std::string step = steps[i];
    if (step == "capture" || step == "end") {
      is_captured = step == "capture";
      continue;
    }
    const int stream = std::stoi(step);
    context.stream = reinterpret_cast<prnnStream_t>(static_cast<size_t>(std::abs(stream)));
    MatrixView a = view, b = view;
    if (stream < 0) a.apart = 20, b.apart = 30;
    try {
      run_gemm(context, 2, 2, 2, 1, a, b, 0, values, PRNN_DATA_FLOAT, 2, FloatProduct::kFloat32, stream < 0 ? 3 : 1,
               40);
    } catch (const Failure& failure) {
      std::printf("status %d: %s, %d left\n", failure.status(), failure.what(), last_error);
    }
  }
  destroy_cublas(context);
}
