// The seam between the RNN-T API and what computes it: the API layer validates a call and fills in one of these
// structs; a backend (cpu/, cuda/) answers sizes and runs. Backends do not validate sizes or options.
#pragma once

#include <cstddef>

#include "core/handle.h"
#include "prnn_losses.h"

namespace prnn {

// Pointers as prnn_losses.h describes them. NULL where the call does not have them.
struct RnntParams {
  prnnRNNTLossOptions_t options;
  const void* activations;
  const int* targets;
  const int* frame_lengths;
  const int* target_lengths;
  const int* range_begins;
  void* workspace;

  int64_t cells_per_frame() const {  // of the PADDED and PRUNED layouts
    return options.layout == PRNN_RNNT_PRUNED ? options.pruneRange : options.maxTargets + 1;
  }
  int64_t rows() const {  // V-vectors of activations
    return options.layout == PRNN_RNNT_PACKED ? options.rows : options.batch * options.maxFrames * cells_per_frame();
  }
};

struct MutualInformationParams {
  prnnMutualInformationOptions_t options;
  const void* px;
  const void* py;
  const int* boundary;
  void* scores;
  void* px_gradients;
  void* py_gradients;
  void* workspace;
};

struct PruneRangesParams {
  prnnMutualInformationOptions_t options;
  const void* px_gradients;
  const void* py_gradients;
  const int* boundary;
  int64_t prune_range;
  int* range_begins;
};

class RnntBackend {
 public:
  virtual ~RnntBackend() = default;
  virtual void require_supported(prnnDataType_t) const = 0;  // or throws NOT_SUPPORTED
  virtual size_t loss_workspace_size(const prnnRNNTLossOptions_t&) const = 0;
  virtual size_t loss_reserve_size(const prnnRNNTLossOptions_t&) const = 0;
  virtual size_t align_workspace_size(const prnnRNNTLossOptions_t&) const = 0;
  virtual size_t mutual_information_workspace_size(const prnnMutualInformationOptions_t&) const = 0;
  // The costs, and unless NULL the gradients of their sum, for which there is a reserve. Memory that may fail to be
  // allocated is there before anything is written.
  virtual void loss(prnnHandle_t, const RnntParams&, void* costs, void* gradients, void* reserve) const = 0;
  virtual void loss_backward(prnnHandle_t, const RnntParams&, const void* cost_gradients, void* gradients,
                             const void* reserve) const = 0;
  virtual void align(prnnHandle_t, const RnntParams&, void* scores, int* frames) const = 0;
  virtual void mutual_information(prnnHandle_t, const MutualInformationParams&) const = 0;
  virtual void prune_ranges(prnnHandle_t, const PruneRangesParams&) const = 0;
};

const RnntBackend& cpu_rnnt_backend();   // src/rnnt/cpu/
const RnntBackend& cuda_rnnt_backend();  // src/rnnt/cuda/

// The backend of the handle's device.
const RnntBackend& rnnt_backend(prnnHandle_t handle);

}  // namespace prnn
