#include "rnn/backend.h"

namespace prnn {

const RnnBackend& select_cuda_backend(prnnContext&, prnnRNNBackend_t, const RnnProblem&) {
  fail(PRNN_STATUS_NOT_SUPPORTED, "the recurrent layers of this build run on CPU handles (prnnCreateCPU) alone");
}

}  // namespace prnn
