// The recursion and the pruning bounds of pruned RNN-T on a GPU. Parameters have been validated; see rnnt/rnnt.h.
#pragma once

#include <cuda_runtime_api.h>

#include "rnnt/cuda/lattice.h"
#include "rnnt/rnnt.h"

namespace prnn::rnnt_cuda {

// The lattice that run_mutual_information works on: one frame longer than the scores, see mutual_information.cu.
Problem mutual_information_problem(const prnnMutualInformationOptions_t& options);

template <class Real>
void run_mutual_information(const MutualInformationParams& params, const Lattice<Real>& lattice, cudaStream_t stream);

template <class Real>
void run_prune_ranges(const PruneRangesParams& params, cudaStream_t stream);

}  // namespace prnn::rnnt_cuda
