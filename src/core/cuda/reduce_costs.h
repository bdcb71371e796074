// The reduction of costs where no other launch does it; see reduce_costs.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "core/reduce_costs.h"

namespace prnn {

template <class Real>
void run_reduction(const ReducedCosts<Real>& reduced, cudaStream_t stream);

}  // namespace prnn
