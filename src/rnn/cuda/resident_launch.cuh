// Launches a resident kernel: all its blocks at once or not at all.
#pragma once

#include "rnn/cuda/resident_params.h"

namespace prnn {

template <class Params>
cudaError_t launch_resident(void (*kernel)(Params), const ResidentShape& shape, const Params& params,
                            cudaStream_t stream) {
  const int bytes = static_cast<int>(shape.shared_bytes);
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks * params.sizes.groups * params.sizes.directions));
  config.blockDim = dim3(kResidentThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = shape.cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace prnn
