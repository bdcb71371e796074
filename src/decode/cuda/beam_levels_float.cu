#include "decode/cuda/beam_levels_launch.cuh"

namespace prnn::decode_cuda {

template cudaError_t run_level_beam_search<float>(const BeamParams&, int, cudaStream_t);

}  // namespace prnn::decode_cuda
