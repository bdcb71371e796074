// A libcublas whose product says on which stream it is, and which of the handle's workspaces it has.
#include <cstdio>
#include <cstdlib>
#include <map>

namespace {

void* stream = nullptr;
void* workspace = nullptr;
std::map<void*, int> workspaces;  // in the order in which they were first set

}  // namespace

extern "C" {
int cublasCreate_v2(void** handle) {
  const char* const status = std::getenv("CUBLAS_CREATE");
  return *handle = &stream, status == nullptr ? 0 : std::atoi(status);
}
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void*, void* given) { return stream = given, 0; }
int cublasSetWorkspace_v2(void*, void* given, size_t) {
  workspaces.emplace(given, static_cast<int>(workspaces.size()));
  return workspace = given, 0;
}
int cublasGemmEx(void*, int, int, int m, int, int, ...) {
  if (m > 2) return 0;  // the products that have cuBLAS load its code
  std::printf("product %zu in workspace %d\n", reinterpret_cast<size_t>(stream), workspaces[workspace]);
  return 0;
}
int cublasGemmStridedBatchedEx(void*, int, int, int, int, int, const void*, const void*, int, int, long long a_apart,
                               const void*, int, int, long long b_apart, const void*, void*, int, int,
                               long long c_apart, int count, int, int) {
  std::printf("%d products %zu in workspace %d, %lld, %lld and %lld apart\n", count, reinterpret_cast<size_t>(stream),
              workspaces[workspace], a_apart, b_apart, c_apart);
  return 0;
}
}
