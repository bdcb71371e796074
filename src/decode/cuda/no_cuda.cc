// This folder's functions for the API, in a build without CUDA. Not reached: nobody gets a CUDA handle.
#include "core/cuda/no_cuda.h"
#include "decode/decode.h"

namespace prnn {

const DecodeBackend& cuda_decode_backend() { fail_without_cuda(); }

}  // namespace prnn
