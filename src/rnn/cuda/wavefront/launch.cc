// From a cell and a type to the file that has its wavefront kernels.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "rnn/cuda/wavefront/params.h"

namespace prnn {

template <class T, prnnRNNMode_t MODE>
cudaError_t launch_wavefront_forward(const ResidentShape& shape, const WavefrontForwardParams& params,
                                     cudaStream_t stream);
template <class T>
cudaError_t launch_wavefront_wgmma_forward(const ResidentShape& shape, const WavefrontForwardParams& params,
                                           cudaStream_t stream);
template <class T>
cudaError_t launch_wavefront_wgmma_backward(const ResidentShape& shape, const WavefrontBackwardParams& params,
                                            cudaStream_t stream);
template <class T, prnnRNNMode_t MODE>
cudaError_t launch_wavefront_backward(const ResidentShape& shape, const WavefrontBackwardParams& params,
                                      cudaStream_t stream);

namespace {

template <class T>
cudaError_t forward_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const WavefrontForwardParams& params,
                            cudaStream_t stream) {
  if (shape.wgmma_columns > 0) return launch_wavefront_wgmma_forward<T>(shape, params, stream);
  switch (mode) {
    case PRNN_LSTM: return launch_wavefront_forward<T, PRNN_LSTM>(shape, params, stream);
    case PRNN_GRU: return launch_wavefront_forward<T, PRNN_GRU>(shape, params, stream);
    default: return launch_wavefront_forward<T, PRNN_RNN_TANH>(shape, params, stream);
  }
}

template <class T>
cudaError_t backward_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const WavefrontBackwardParams& params,
                             cudaStream_t stream) {
  if (shape.wgmma_columns > 0) return launch_wavefront_wgmma_backward<T>(shape, params, stream);
  switch (mode) {
    case PRNN_LSTM: return launch_wavefront_backward<T, PRNN_LSTM>(shape, params, stream);
    case PRNN_GRU: return launch_wavefront_backward<T, PRNN_GRU>(shape, params, stream);
    default: return launch_wavefront_backward<T, PRNN_RNN_TANH>(shape, params, stream);
  }
}

}  // namespace

cudaError_t run_wavefront_forward(prnnRNNMode_t mode, prnnDataType_t type, const ResidentShape& shape,
                                  const WavefrontForwardParams& params, cudaStream_t stream) {
  switch (type) {
    case PRNN_DATA_HALF: return forward_of_type<__half>(mode, shape, params, stream);
    case PRNN_DATA_BFLOAT16: return forward_of_type<__nv_bfloat16>(mode, shape, params, stream);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t run_wavefront_backward(prnnRNNMode_t mode, prnnDataType_t type, const ResidentShape& shape,
                                   const WavefrontBackwardParams& params, cudaStream_t stream) {
  switch (type) {
    case PRNN_DATA_HALF: return backward_of_type<__half>(mode, shape, params, stream);
    case PRNN_DATA_BFLOAT16: return backward_of_type<__nv_bfloat16>(mode, shape, params, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace prnn
