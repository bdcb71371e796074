// Whether prnn takes the calls of a configuration.
#pragma once

#include "cudnn_standin/weights.h"

namespace prnn_cudnn {

struct Decision {
  std::string reason;  // why cuDNN serves the calls; empty: prnn does
  const WeightLayout* weights = nullptr;
};

// The reasons that follow from the configuration alone, without a device; empty if there are none.
std::string why_forwarded(const Configuration& configuration);

// The same for the lengths of the sequences.
std::string why_forwarded(const Configuration& configuration, const Sequences& sequences);

// Why cuDNN is left a configuration that the resident kernels could serve: it is faster there. Measured on an H200,
// docs/cudnn_standin.md. Empty if it is not.
std::string why_slower(const Configuration& configuration, bool is_training);

// The same of a call of inference that is captured into a graph: the host's time, which prnn takes less of, does not
// count there.
std::string why_slower_in_graph(const Configuration& configuration);

// Sets prnn's descriptor of a layer as the configuration says.
void describe(const Prnn& prnn, const Configuration& configuration, prnnDropoutDescriptor_t dropout,
              prnnRNNDescriptor_t rnn);

// For a configuration that why_forwarded() has nothing against. What it takes of the two libraries it asks once for
// each configuration and device: nothing in that changes while the process lives.
Decision decide(const Cudnn& cudnn, const Prnn& prnn, prnnHandle_t prnn_handle, int device, void* cudnn_handle,
                void* cudnn_rnn, const Configuration& configuration, bool is_training);

}  // namespace prnn_cudnn
