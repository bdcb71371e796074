#include "decode/cuda/search_launch.cuh"

namespace prnn::decode_cuda {

template cudaError_t run_search<float>(const SearchParams&, int, cudaStream_t);

}  // namespace prnn::decode_cuda
