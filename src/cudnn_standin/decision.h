// Whether prnn takes the calls of a configuration. Which of the two libraries is faster follows from libprnn's plan, as
// for PRNN_BEST_BACKEND.
#pragma once

#include "cudnn_standin/weights.h"

namespace prnn_cudnn {

// The decision is the same for all calls of a training step: it does not depend on whether they are captured
// into a graph.
enum class Use { kTraining, kInference, kInferenceInGraph };

struct Decision {
  std::string reason;  // why cuDNN serves the calls; empty: prnn does
  const WeightLayout* weights = nullptr;
};

// The reasons that follow from the configuration alone, without a device; empty if there are none.
std::string why_forwarded(const Configuration& configuration);

// The reasons that follow from the lengths of the sequences.
std::string why_forwarded(const Configuration& configuration, const Sequences& sequences);

// Sets prnn's descriptor of a layer as the configuration says.
void describe(const Prnn& prnn, const Configuration& configuration, prnnDropoutDescriptor_t dropout,
              prnnRNNDescriptor_t rnn);

// For a configuration that why_forwarded() has nothing against; vary: some of its sequences are shorter. What it takes
// of the two libraries it asks once for each configuration and device: nothing in that changes while the process lives.
Decision decide(const Cudnn& cudnn, const Prnn& prnn, prnnHandle_t prnn_handle, int device, void* cudnn_handle,
                void* cudnn_rnn, const Configuration& configuration, bool vary, Use use);

}  // namespace prnn_cudnn
