#include "decode/cuda/beam_launch.cuh"

namespace prnn::decode_cuda {

template cudaError_t run_beam_search<__half>(const BeamParams&, int, int, cudaStream_t);

}  // namespace prnn::decode_cuda
