#include "rnn/backend.h"
#include "core/handle.h"

namespace prnn {

SharedRnnBackend select_backend(prnnContext& context, const prnnRNNStruct& rnn, const RnnProblem& problem) {
  if (!context.is_cpu()) return select_cuda_backend(context, rnn.backend, problem);
  return cpu_rnn_backend();
}

}  // namespace prnn
