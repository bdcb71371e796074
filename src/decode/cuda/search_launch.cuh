// Launches of the search; search_TYPE.cu have those of a type.
#pragma once

#include "decode/cuda/search.cuh"
#include "rnn/cuda/common/launch.cuh"

namespace prnn::decode_cuda {
namespace {

template <class T, int COLUMN_TILES>
cudaError_t launch(const SearchParams& params, cudaStream_t stream) {
  ResidentShape shape;
  shape.blocks = params.blocks;
  shape.shared_bytes = params.shared.total;
  return launch_resident(search_kernel<T, COLUMN_TILES>, shape, params, stream, kThreads + kHelperThreads);
}

}  // namespace

template <class T>
cudaError_t run_search(const SearchParams& params, int column_tiles, cudaStream_t stream) {
  switch (column_tiles) {
    case 1: return launch<T, 1>(params, stream);
    case 2: return launch<T, 2>(params, stream);
    default: return launch<T, 3>(params, stream);
  }
}

}  // namespace prnn::decode_cuda
