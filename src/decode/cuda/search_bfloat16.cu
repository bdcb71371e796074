#include "decode/cuda/search_launch.cuh"

namespace prnn::decode_cuda {

template cudaError_t run_search<__nv_bfloat16>(const SearchParams&, int, cudaStream_t);

}  // namespace prnn::decode_cuda
