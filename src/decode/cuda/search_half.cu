#include "decode/cuda/search_launch.cuh"

namespace prnn::decode_cuda {

template cudaError_t run_search<__half>(const SearchParams&, int, cudaStream_t);

}  // namespace prnn::decode_cuda
