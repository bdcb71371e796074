// The backend that serves a call.
#pragma once

#include "rnn/problem.h"
#include "rnn/rnn_descriptor.h"

namespace prnn {

// The backend that serves the problem on the handle's device, or NOT_SUPPORTED with the limit that was broken.
SharedRnnBackend select_backend(prnnContext& context, const prnnRNNStruct& rnn, const RnnProblem& problem);

// The backend for a CUDA handle, where `wanted` matters. Lives in rnn/cudnn/.
SharedRnnBackend select_cuda_backend(prnnContext& context, prnnRNNBackend_t wanted, const RnnProblem& problem);

}  // namespace prnn
