// The functions of cuda/ folders in a build without CUDA. Only the first can be reached: nobody gets a CUDA handle.
#include "core/cuda/cuda_state.h"
#include "core/cuda/transfer.h"
#include "core/reduce_costs.h"
#include "ctc/ctc.h"
#include "rnn/backend.h"
#include "rnnt/duration.h"
#include "rnnt/joint.h"
#include "rnnt/rnnt.h"

namespace prnn {
namespace {

[[noreturn]] void fail_without_cuda() {
  fail(PRNN_STATUS_NOT_SUPPORTED,
       "this build of prnn has no CUDA; use prnnCreateCPU, or build it with nvcc and cuda=on");
}

}  // namespace

void init_cuda_state(prnnContext&) { fail_without_cuda(); }

void destroy_cuda_state(prnnContext&) {}

int current_cuda_device() { fail_without_cuda(); }

void copy_and_wait(const prnnContext&, void*, const void*, size_t) { fail_without_cuda(); }

void write_dropout_states(prnnContext&, void*, const DropoutStates&) { fail_without_cuda(); }

const GpuRow& cuda_gpu_row(const prnnContext&) { fail_without_cuda(); }

std::string describe_gpu(const prnnContext&) { fail_without_cuda(); }

void check_earlier_calls(prnnContext&) { fail_without_cuda(); }

template <class Real>
void cuda_reduce_costs(prnnHandle_t, const Reduction&, const Real*, Real*) {
  fail_without_cuda();
}
template <class Real>
void cuda_reduce_costs_backward(prnnHandle_t, const Reduction&, const Real*, Real*) {
  fail_without_cuda();
}
template void cuda_reduce_costs(prnnHandle_t, const Reduction&, const float*, float*);
template void cuda_reduce_costs(prnnHandle_t, const Reduction&, const double*, double*);
template void cuda_reduce_costs_backward(prnnHandle_t, const Reduction&, const float*, float*);
template void cuda_reduce_costs_backward(prnnHandle_t, const Reduction&, const double*, double*);

const RnnBackend& select_cuda_backend(prnnContext&, prnnRNNBackend_t, const RnnProblem&) { fail_without_cuda(); }

const CtcBackend& cuda_ctc_backend() { fail_without_cuda(); }

const RnntBackend& cuda_rnnt_backend() { fail_without_cuda(); }

const DurationBackend& cuda_duration_backend() { fail_without_cuda(); }

const JointBackend& cuda_joint_backend() { fail_without_cuda(); }

}  // namespace prnn
