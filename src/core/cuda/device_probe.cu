#include "core/cuda/device_probe.h"

#include <cuda_runtime_api.h>

namespace prnn {
namespace {

__global__ void whole_multiprocessor() {}

}  // namespace

int probe_code_arch() {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, whole_multiprocessor) == cudaSuccess) return attributes.ptxVersion;
  cudaGetLastError();  // not to be taken for a later call's
  return 0;
}

int probe_cluster_blocks(int cluster, int multiprocessors, int shared_bytes) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(multiprocessors / cluster * cluster));
  config.blockDim = dim3(256);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const bool told = cudaFuncSetAttribute(whole_multiprocessor, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         shared_bytes) == cudaSuccess &&
                    cudaOccupancyMaxActiveClusters(&clusters, whole_multiprocessor, &config) == cudaSuccess;
  if (told) return clusters * cluster;
  cudaGetLastError();
  return 0;
}

}  // namespace prnn
