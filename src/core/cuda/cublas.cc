#include "core/cuda/cublas.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <library_types.h>

#include <limits>
#include <memory>

#include "core/cuda/cuda_state.h"
#include "core/cuda/launch.h"
#include "core/enums.h"

namespace prnn {

// cuBLAS's handle and the workspaces that its products leave partial sums and counters in: two products that run at
// once must not have the same. Calls of one handle may go to several streams, and those of a graph run when it is
// replayed.
struct CublasState {
  void* handle = nullptr;
  void* workspace = nullptr;        // of calls, whose products wait for each other
  void* graph_workspace = nullptr;  // of calls that are captured
  cudaEvent_t done = nullptr;       // recorded after the last call's product

  CublasState() = default;
  CublasState(const CublasState&) = delete;
  CublasState& operator=(const CublasState&) = delete;
  ~CublasState();
};

namespace {

// The part of cuBLAS's C API that is used; its enumerations are int, with the values that cuBLAS documents.
constexpr int kNormal = 0, kTranspose = 1;
constexpr int kCompute32 = 68, kCompute64 = 70, kComputeTf32 = 77;
constexpr int kDefaultAlgorithm = -1, kAllocationFailed = 3;

struct Library {
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*set_stream)(void* handle, cudaStream_t stream) = nullptr;
  int (*set_workspace)(void* handle, void* workspace, size_t size) = nullptr;
  int (*gemm)(void* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a, int a_type,
              int lda, const void* b, int b_type, int ldb, const void* beta, void* c, int c_type, int ldc,
              int compute_type, int algorithm) = nullptr;
  int (*gemms)(void* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a, int a_type,
               int lda, long long a_apart, const void* b, int b_type, int ldb, long long b_apart, const void* beta,
               void* c, int c_type, int ldc, long long c_apart, int count, int compute_type, int algorithm) = nullptr;

  Library() {
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"}) {
      void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      create = reinterpret_cast<decltype(create)>(dlsym(library, "cublasCreate_v2"));
      destroy = reinterpret_cast<decltype(destroy)>(dlsym(library, "cublasDestroy_v2"));
      set_stream = reinterpret_cast<decltype(set_stream)>(dlsym(library, "cublasSetStream_v2"));
      set_workspace = reinterpret_cast<decltype(set_workspace)>(dlsym(library, "cublasSetWorkspace_v2"));
      gemm = reinterpret_cast<decltype(gemm)>(dlsym(library, "cublasGemmEx"));
      gemms = reinterpret_cast<decltype(gemms)>(dlsym(library, "cublasGemmStridedBatchedEx"));
      if (create && destroy && set_stream && set_workspace && gemm && gemms) return;
      create = nullptr;
    }
  }
  bool loaded() const { return create != nullptr; }
};

const Library& cublas() {
  static const Library library;
  return library;
}

// cuBLAS's own recommendation for Hopper. Workspaces of the handle's own, because cuBLAS's must not be allocated in a
// call and is not the same for all calls of a captured graph.
constexpr size_t kWorkspaceSize = size_t{32} << 20;

// The part of the workspace that float products of few rows with a small matrix may use. Given all, cuBLAS splits their
// sums over few blocks: 25 to 55 us in the place of 3 to 9, measured on an H200 (docs/resident_kernels_measured.md).
constexpr size_t kWorkspaceOfFewRows = size_t{4} << 20;
constexpr int64_t kFewRows = 16;
constexpr int64_t kSmallMatrix = 150'000, kSmallTransposedMatrix = 400'000;  // elements

int cuda_type(prnnDataType_t type) {
  switch (type) {
    case PRNN_DATA_FLOAT: return CUDA_R_32F;
    case PRNN_DATA_DOUBLE: return CUDA_R_64F;
    case PRNN_DATA_HALF: return CUDA_R_16F;
    case PRNN_DATA_BFLOAT16: return CUDA_R_16BF;
  }
  fail(PRNN_STATUS_INTERNAL_ERROR, "a matrix has %s", name_of(type));
}

int narrow(int64_t value) {
  if (value > std::numeric_limits<int>::max()) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "a matrix product has a dimension of %lld; cuBLAS takes at most 2147483647",
         static_cast<long long>(value));
  }
  return static_cast<int>(value);
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status != cudaStreamCaptureStatusNone;
  cudaGetLastError();
  return true;  // another stream is being captured, which forbids more than this product
}

// The workspace for the stream's next product, which waits for the last one, of another stream perhaps.
void* take_workspace(const CublasState& state, cudaStream_t stream) {
  if (is_capturing(stream)) return state.graph_workspace;
  require_success(cudaStreamWaitEvent(stream, state.done, 0), PRNN_STATUS_EXECUTION_FAILED,
                  "the last matrix product could not be waited for");
  return state.workspace;
}

// cuBLAS loads its code with its first product, which takes a tenth of a second: now, and not in a layer's first call.
// Products of 512 load what a layer's need, those of 16 in float other kernels. The matrices lie in a workspace; their
// values do not matter. A failure is left for the layer's call to report. The stream is one that nobody captures.
void load_kernels(prnnContext& context) {
  constexpr int64_t kSize = 512;
  const prnnStream_t stream = context.stream;
  cudaStream_t own = nullptr;
  if (cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking) == cudaSuccess) {
    // The products work in the other one.
    char* const matrix = static_cast<char*>(cuda_state(context).cublas->graph_workspace);
    context.stream = own;
    try {
      for (prnnDataType_t type : {PRNN_DATA_FLOAT, PRNN_DATA_HALF}) {
        const MatrixView view{matrix, type, kSize};
        run_gemm(context, kSize, kSize, kSize, 1, view, view, 0, matrix + kWorkspaceSize / 2, type, kSize);
      }
    } catch (const Failure&) {
    }
    context.stream = stream;
    cublas().set_stream(cuda_state(context).cublas->handle, stream);
    cudaStreamSynchronize(own);
    cudaStreamDestroy(own);
  }
  cudaGetLastError();
}

}  // namespace

CublasState::~CublasState() {
  if (handle != nullptr) cublas().destroy(handle);
  if (done != nullptr) cudaEventDestroy(done);
  cudaFree(workspace);
  cudaFree(graph_workspace);
}

void create_cublas(prnnContext& context) {
  if (!cublas().loaded()) return;
  auto made = std::make_unique<CublasState>();
  if (const int status = cublas().create(&made->handle); status != 0) {
    made->handle = nullptr;
    cudaGetLastError();
    if (status == kAllocationFailed) fail(PRNN_STATUS_ALLOC_FAILED, "cuBLAS found no memory for a handle");
    return;
  }
  if (cudaMalloc(&made->workspace, kWorkspaceSize) != cudaSuccess ||
      cudaMalloc(&made->graph_workspace, kWorkspaceSize) != cudaSuccess ||
      cudaEventCreateWithFlags(&made->done, cudaEventDisableTiming) != cudaSuccess) {
    cudaGetLastError();
    fail(PRNN_STATUS_ALLOC_FAILED, "%zu bytes of GPU memory for cuBLAS could not be had", 2 * kWorkspaceSize);
  }
  cuda_state(context).cublas = made.release();
  load_kernels(context);
}

void destroy_cublas(prnnContext& context) {
  delete cuda_state(context).cublas;
  cuda_state(context).cublas = nullptr;
}

void run_gemm(prnnContext& context, int64_t m, int64_t n, int64_t k, double alpha, const MatrixView& a,
              const MatrixView& b, double beta, void* c, prnnDataType_t c_type, int64_t c_stride,
              FloatProduct precision, int64_t count, int64_t c_apart) {
  if (m == 0 || n == 0) return;
  const CublasState* const state = cuda_state(context).cublas;
  if (state == nullptr) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "cuBLAS is needed and could not be loaded; install it, or import torch first");
  }
  const bool is_double = a.type == PRNN_DATA_DOUBLE;
  const bool tf32 = a.type == PRNN_DATA_FLOAT && precision == FloatProduct::kTf32;
  const int compute = is_double ? kCompute64 : tf32 ? kComputeTf32 : kCompute32;
  const float alpha32 = static_cast<float>(alpha), beta32 = static_cast<float>(beta);
  const void* alpha_at = is_double ? static_cast<const void*>(&alpha) : &alpha32;
  const void* beta_at = is_double ? static_cast<const void*>(&beta) : &beta32;
  const int sizes[] = {narrow(n), narrow(m), narrow(k), narrow(b.stride), narrow(a.stride), narrow(c_stride)};
  // cuBLAS is column-major: it computes the transpose of c, from b and a in turn.
  void* const workspace = take_workspace(*state, context.stream);
  int status = cublas().set_stream(state->handle, context.stream);
  const bool is_float = a.type == PRNN_DATA_FLOAT && precision == FloatProduct::kFloat32;
  const bool is_small = m <= kFewRows && n * k <= (b.transposed ? kSmallTransposedMatrix : kSmallMatrix);
  const size_t workspace_size = is_float && is_small ? kWorkspaceOfFewRows : kWorkspaceSize;
  if (status == 0) status = cublas().set_workspace(state->handle, workspace, workspace_size);
  const int b_as = b.transposed ? kTranspose : kNormal, a_as = a.transposed ? kTranspose : kNormal;
  if (status == 0 && count == 1) {
    status = cublas().gemm(state->handle, b_as, a_as, sizes[0], sizes[1], sizes[2], alpha_at, b.data, cuda_type(b.type),
                           sizes[3], a.data, cuda_type(a.type), sizes[4], beta_at, c, cuda_type(c_type), sizes[5],
                           compute, kDefaultAlgorithm);
  } else if (status == 0) {
    status = cublas().gemms(state->handle, b_as, a_as, sizes[0], sizes[1], sizes[2], alpha_at, b.data,
                            cuda_type(b.type), sizes[3], b.apart, a.data, cuda_type(a.type), sizes[4], a.apart, beta_at,
                            c, cuda_type(c_type), sizes[5], c_apart, narrow(count), compute, kDefaultAlgorithm);
  }
  cudaError_t recorded = cudaSuccess;
  if (workspace == state->workspace) recorded = cudaEventRecord(state->done, context.stream);
  if (status != 0) {
    fail(PRNN_STATUS_EXECUTION_FAILED, "cuBLAS refused a product of {%d, %d} and {%d, %d} with status %d", sizes[1],
         sizes[2], sizes[2], sizes[0], status);
  }
  require_success(recorded, PRNN_STATUS_EXECUTION_FAILED, "the end of a matrix product could not be recorded");
}

}  // namespace prnn
