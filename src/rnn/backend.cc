#include "rnn/backend.h"
#include "core/handle.h"

namespace prnn {

const RnnBackend& select_backend(prnnContext& context, const prnnRNNStruct& rnn, const RnnProblem& problem) {
  if (!context.is_cpu()) return select_cuda_backend(context, rnn.backend, problem);
  if (problem.type != PRNN_DATA_FLOAT && problem.type != PRNN_DATA_DOUBLE) {
    fail(PRNN_STATUS_NOT_SUPPORTED, "a CPU handle serves float and double; the data type is %s",
         type_name(problem.type));
  }
  return cpu_rnn_backend();
}

}  // namespace prnn
