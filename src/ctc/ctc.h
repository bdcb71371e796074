// The seam between the CTC API and what computes it: the API layer validates a call and fills in CtcParams; a backend
// (cpu/, cuda/) answers sizes and runs. Backends do not validate sizes or options.
#pragma once

#include <cstddef>

#include "core/handle.h"
#include "prnn_losses.h"

namespace prnn {

// Pointers as prnn_losses.h describes them. NULL where the call does not have them. The options' strides are not 0.
struct CtcParams {
  prnnCTCLossOptions_t options;
  const void* activations;
  const int* targets;
  const int* frame_lengths;
  const int* target_lengths;
  void* workspace;
};

class CtcBackend {
 public:
  virtual ~CtcBackend() = default;
  virtual void require_supported(prnnDataType_t) const = 0;  // or throws NOT_SUPPORTED
  virtual size_t loss_workspace_size(const prnnCTCLossOptions_t&) const = 0;
  virtual size_t loss_reserve_size(const prnnCTCLossOptions_t&) const = 0;
  virtual size_t align_workspace_size(const prnnCTCLossOptions_t&) const = 0;
  // The costs, and unless NULL the gradients of their sum, for which there is a reserve. Memory that may fail to be
  // allocated is there before anything is written.
  virtual void loss(prnnHandle_t, const CtcParams&, void* costs, void* gradients, void* reserve) const = 0;
  virtual void loss_backward(prnnHandle_t, const CtcParams&, const void* cost_gradients, void* gradients,
                             const void* reserve) const = 0;
  virtual void align(prnnHandle_t, const CtcParams&, void* scores, int* begins, int* ends) const = 0;
};

const CtcBackend& cpu_ctc_backend();   // src/ctc/cpu/
const CtcBackend& cuda_ctc_backend();  // src/ctc/cuda/

}  // namespace prnn
