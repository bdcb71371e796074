// The transducer search on a GPU.
#include "decode/decode.h"

namespace prnn {
namespace {

[[noreturn]] void fail_without_kernel() {
  fail(PRNN_STATUS_NOT_SUPPORTED, "the transducer search has no kernel for GPUs; it takes handles of prnnCreateCPU");
}

class CudaDecodeBackend final : public DecodeBackend {
 public:
  void require_supported(prnnHandle_t, const TransducerModel&) const override { fail_without_kernel(); }
  size_t prepared_size(prnnHandle_t, const TransducerModel&) const override { fail_without_kernel(); }
  void prepare(prnnHandle_t, const TransducerModel&, const prnnTransducerWeights_t&, void*) const override {
    fail_without_kernel();
  }
  WorkspaceSize workspace_size(prnnHandle_t, const TransducerModel&,
                               const prnnTransducerSearchOptions_t&) const override {
    fail_without_kernel();
  }
  void search(prnnHandle_t, const TransducerModel&, const TransducerSearchArgs&) const override {
    fail_without_kernel();
  }
};

}  // namespace

const DecodeBackend& cuda_decode_backend() {
  static const CudaDecodeBackend backend;
  return backend;
}

}  // namespace prnn
