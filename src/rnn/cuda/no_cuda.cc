// The functions of this folder in a build without CUDA. Not reached: nobody gets a CUDA handle.
#include "core/cuda/no_cuda.h"
#include "rnn/cuda/backend.h"
#include "rnn/gates_input.h"
#include "rnn/sequences.h"

namespace prnn {

std::shared_ptr<const ResidentBackend> resident_backend(prnnContext&, const RnnProblem&) { fail_without_cuda(); }

void multiply_gates_cuda(prnnContext&, prnnDataType_t, bool, const GatesProduct&) { fail_without_cuda(); }

void copy_sequences_cuda(const prnnContext&, const SequenceCopy&) { fail_without_cuda(); }

}  // namespace prnn
