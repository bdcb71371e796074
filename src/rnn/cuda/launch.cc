// From a plan to the kernel that was compiled for it.
#include "rnn/cuda/common/params.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "rnn/plan/cluster.h"

namespace prnn {

struct Tf32;  // resident_tf32.cuh

template <class T, prnnRNNMode_t MODE, int UNIT_TILES>
cudaError_t launch_mma_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream);
template <class T, prnnRNNMode_t MODE, int UNIT_TILES, int CLUSTER>
cudaError_t launch_mma_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream);
template <class T, prnnRNNMode_t MODE>
cudaError_t launch_wgmma_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream);
template <class T, prnnRNNMode_t MODE>
cudaError_t launch_wgmma_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream);
template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER>
cudaError_t launch_cluster_forward(const ForwardParams& params, cudaStream_t stream);
template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER>
cudaError_t launch_cluster_backward(const BackwardParams& params, cudaStream_t stream);
template <class T, prnnRNNMode_t MODE>
cudaError_t launch_wgmma_split_k_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream);
template <class T, prnnRNNMode_t MODE>
cudaError_t launch_wgmma_split_k_backward(const ResidentShape& shape, const BackwardParams& params,
                                          cudaStream_t stream);
template <class T, prnnRNNMode_t MODE>
cudaError_t launch_mma_large_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream);
template <class T, prnnRNNMode_t MODE>
cudaError_t launch_mma_large_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream);
template <prnnRNNMode_t MODE, int KERNEL>
cudaError_t launch_simt_forward(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream);
template <prnnRNNMode_t MODE, int KERNEL>
cudaError_t launch_simt_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream);

namespace {

template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER>
cudaError_t launch_cluster_of(const ForwardParams& params, cudaStream_t stream) {
  return launch_cluster_forward<T, MODE, K_TILES, CLUSTER>(params, stream);
}
template <class T, prnnRNNMode_t MODE, int K_TILES, int CLUSTER>
cudaError_t launch_cluster_of(const BackwardParams& params, cudaStream_t stream) {
  return launch_cluster_backward<T, MODE, K_TILES, CLUSTER>(params, stream);
}

template <class T, prnnRNNMode_t MODE, class Params>
cudaError_t run_cluster_of_cell(const ResidentShape& shape, const Params& params, cudaStream_t stream) {
  switch (cluster_k_tiles(shape)) {
    case 4: return launch_cluster_of<T, MODE, 4, 8>(params, stream);
    case 8: return launch_cluster_of<T, MODE, 8, 8>(params, stream);
    case 16:
      if constexpr (MODE == PRNN_RNN_TANH) {
        if (shape.cluster == 8) return launch_cluster_of<T, MODE, 16, 8>(params, stream);
      }
      return launch_cluster_of<T, MODE, 16, 16>(params, stream);
    case 32:
      if constexpr (MODE == PRNN_RNN_TANH && std::is_same_v<Params, ForwardParams>) {
        return launch_cluster_of<T, MODE, 32, 16>(params, stream);
      }
  }
  return cudaErrorInvalidValue;
}

template <class T, class Params>
cudaError_t run_cluster_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const Params& params,
                                cudaStream_t stream) {
  switch (mode) {
    case PRNN_LSTM: return run_cluster_of_cell<T, PRNN_LSTM>(shape, params, stream);
    case PRNN_GRU: return run_cluster_of_cell<T, PRNN_GRU>(shape, params, stream);
    default: return run_cluster_of_cell<T, PRNN_RNN_TANH>(shape, params, stream);
  }
}

template <class Params>
cudaError_t run_cluster(prnnRNNMode_t mode, prnnDataType_t type, const ResidentShape& shape, const Params& params,
                        cudaStream_t stream) {
  switch (type) {
    case PRNN_DATA_HALF: return run_cluster_of_type<__half>(mode, shape, params, stream);
    case PRNN_DATA_BFLOAT16: return run_cluster_of_type<__nv_bfloat16>(mode, shape, params, stream);
    default: return cudaErrorInvalidValue;
  }
}

template <prnnRNNMode_t MODE, int KERNEL>
cudaError_t launch_simt_of(const ResidentShape& shape, const ForwardParams& params, cudaStream_t stream) {
  return launch_simt_forward<MODE, KERNEL>(shape, params, stream);
}
template <prnnRNNMode_t MODE, int KERNEL>
cudaError_t launch_simt_of(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  return launch_simt_backward<MODE, KERNEL>(shape, params, stream);
}

template <prnnRNNMode_t MODE, class Params>
cudaError_t run_simt_of_cell(const ResidentShape& shape, const Params& params, cudaStream_t stream) {
  switch (shape.simt_kernel) {
    case 1: return launch_simt_of<MODE, 1>(shape, params, stream);
    case 2: return launch_simt_of<MODE, 2>(shape, params, stream);
    case 3: return launch_simt_of<MODE, 3>(shape, params, stream);
    case 4: return launch_simt_of<MODE, 4>(shape, params, stream);
    case 5:
      if constexpr (MODE == PRNN_RNN_TANH) return launch_simt_of<MODE, 5>(shape, params, stream);
  }
  return cudaErrorInvalidValue;
}

template <class Params>
cudaError_t run_simt(prnnRNNMode_t mode, const ResidentShape& shape, const Params& params, cudaStream_t stream) {
  switch (mode) {
    case PRNN_LSTM: return run_simt_of_cell<PRNN_LSTM>(shape, params, stream);
    case PRNN_GRU: return run_simt_of_cell<PRNN_GRU>(shape, params, stream);
    default: return run_simt_of_cell<PRNN_RNN_TANH>(shape, params, stream);
  }
}

template <class T>
constexpr bool kIsFloat32 = std::is_same_v<T, float> || std::is_same_v<T, Tf32>;

template <class T>
cudaError_t large_forward_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const ForwardParams& params,
                                  cudaStream_t stream) {
  switch (mode) {
    case PRNN_LSTM: return launch_mma_large_forward<T, PRNN_LSTM>(shape, params, stream);
    case PRNN_GRU: return launch_mma_large_forward<T, PRNN_GRU>(shape, params, stream);
    default: return launch_mma_large_forward<T, PRNN_RNN_TANH>(shape, params, stream);
  }
}

template <class T>
cudaError_t large_backward_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const BackwardParams& params,
                                   cudaStream_t stream) {
  switch (mode) {
    case PRNN_LSTM: return launch_mma_large_backward<T, PRNN_LSTM>(shape, params, stream);
    case PRNN_GRU: return launch_mma_large_backward<T, PRNN_GRU>(shape, params, stream);
    default: return launch_mma_large_backward<T, PRNN_RNN_TANH>(shape, params, stream);
  }
}

template <class T>
cudaError_t wgmma_forward_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const ForwardParams& params,
                                  cudaStream_t stream) {
  if (shape.is_split_k()) {
    return mode == PRNN_LSTM ? launch_wgmma_split_k_forward<T, PRNN_LSTM>(shape, params, stream)
                             : launch_wgmma_split_k_forward<T, PRNN_GRU>(shape, params, stream);
  }
  return mode == PRNN_LSTM ? launch_wgmma_forward<T, PRNN_LSTM>(shape, params, stream)
                           : launch_wgmma_forward<T, PRNN_GRU>(shape, params, stream);
}

template <class T>
cudaError_t wgmma_backward_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const BackwardParams& params,
                                   cudaStream_t stream) {
  if (shape.is_split_k()) {
    return mode == PRNN_LSTM ? launch_wgmma_split_k_backward<T, PRNN_LSTM>(shape, params, stream)
                             : launch_wgmma_split_k_backward<T, PRNN_GRU>(shape, params, stream);
  }
  return mode == PRNN_LSTM ? launch_wgmma_backward<T, PRNN_LSTM>(shape, params, stream)
                           : launch_wgmma_backward<T, PRNN_GRU>(shape, params, stream);
}

template <class T>
cudaError_t forward_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const ForwardParams& params,
                            cudaStream_t stream) {
  if (shape.large_units > 0) return large_forward_of_type<T>(mode, shape, params, stream);
  switch (mode) {
    case PRNN_LSTM:
      switch (shape.unit_tiles) {
        case 1: return launch_mma_forward<T, PRNN_LSTM, 1>(shape, params, stream);
        case 2: return launch_mma_forward<T, PRNN_LSTM, 2>(shape, params, stream);
      }
      break;
    case PRNN_GRU:
      switch (shape.unit_tiles) {
        case 1: return launch_mma_forward<T, PRNN_GRU, 1>(shape, params, stream);
        case 2: return launch_mma_forward<T, PRNN_GRU, 2>(shape, params, stream);
        case 3: return launch_mma_forward<T, PRNN_GRU, 3>(shape, params, stream);
      }
      break;
    default:
      switch (shape.unit_tiles) {
        case 2: return launch_mma_forward<T, PRNN_RNN_TANH, 2>(shape, params, stream);
        case 4: return launch_mma_forward<T, PRNN_RNN_TANH, 4>(shape, params, stream);
      }
  }
  return cudaErrorInvalidValue;
}

template <class T, prnnRNNMode_t MODE, int CLUSTER>
cudaError_t gated_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  switch (shape.unit_tiles) {
    case 1: return launch_mma_backward<T, MODE, 1, CLUSTER>(shape, params, stream);
    case 2: return launch_mma_backward<T, MODE, 2, CLUSTER>(shape, params, stream);
    case 3:
      if constexpr (MODE == PRNN_GRU) return launch_mma_backward<T, MODE, 3, CLUSTER>(shape, params, stream);
  }
  return cudaErrorInvalidValue;
}

template <class T>
cudaError_t backward_of_type(prnnRNNMode_t mode, const ResidentShape& shape, const BackwardParams& params,
                             cudaStream_t stream) {
  if (shape.large_units > 0) return large_backward_of_type<T>(mode, shape, params, stream);
  switch (mode) {
    case PRNN_LSTM:
      switch (shape.cluster) {
        case 1: return gated_backward<T, PRNN_LSTM, 1>(shape, params, stream);
        case 2: return launch_mma_backward<T, PRNN_LSTM, 2, 2>(shape, params, stream);
        case 4:
          if constexpr (kIsFloat32<T>) return gated_backward<T, PRNN_LSTM, 4>(shape, params, stream);
      }
      break;
    case PRNN_GRU:
      if (shape.cluster == 1) return gated_backward<T, PRNN_GRU, 1>(shape, params, stream);
      if constexpr (kIsFloat32<T>) return gated_backward<T, PRNN_GRU, 3>(shape, params, stream);
      return launch_mma_backward<T, PRNN_GRU, 3, 3>(shape, params, stream);
    default:
      switch (shape.unit_tiles) {
        case 2: return launch_mma_backward<T, PRNN_RNN_TANH, 2, 1>(shape, params, stream);
        case 4: return launch_mma_backward<T, PRNN_RNN_TANH, 4, 1>(shape, params, stream);
      }
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t run_resident_forward(prnnRNNMode_t mode, prnnDataType_t type, const ResidentShape& shape,
                                 const ForwardParams& params, cudaStream_t stream) {
  if (shape.simt_kernel > 0) return run_simt(mode, shape, params, stream);
  if (is_cluster_shape(shape)) return run_cluster(mode, type, shape, params, stream);
  if (shape.wgmma_columns > 0) {
    switch (type) {
      case PRNN_DATA_HALF: return wgmma_forward_of_type<__half>(mode, shape, params, stream);
      case PRNN_DATA_BFLOAT16: return wgmma_forward_of_type<__nv_bfloat16>(mode, shape, params, stream);
      default: return cudaErrorInvalidValue;
    }
  }
  switch (type) {
    case PRNN_DATA_HALF: return forward_of_type<__half>(mode, shape, params, stream);
    case PRNN_DATA_BFLOAT16: return forward_of_type<__nv_bfloat16>(mode, shape, params, stream);
    case PRNN_DATA_FLOAT:
      return params.sizes.tf32 ? forward_of_type<Tf32>(mode, shape, params, stream)
                               : forward_of_type<float>(mode, shape, params, stream);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t run_resident_backward(prnnRNNMode_t mode, prnnDataType_t type, const ResidentShape& shape,
                                  const BackwardParams& params, cudaStream_t stream) {
  if (shape.simt_kernel > 0) return run_simt(mode, shape, params, stream);
  if (is_cluster_shape(shape)) return run_cluster(mode, type, shape, params, stream);
  if (shape.wgmma_columns > 0) {
    switch (type) {
      case PRNN_DATA_HALF: return wgmma_backward_of_type<__half>(mode, shape, params, stream);
      case PRNN_DATA_BFLOAT16: return wgmma_backward_of_type<__nv_bfloat16>(mode, shape, params, stream);
      default: return cudaErrorInvalidValue;
    }
  }
  switch (type) {
    case PRNN_DATA_HALF: return backward_of_type<__half>(mode, shape, params, stream);
    case PRNN_DATA_BFLOAT16: return backward_of_type<__nv_bfloat16>(mode, shape, params, stream);
    case PRNN_DATA_FLOAT:
      return params.sizes.tf32 ? backward_of_type<Tf32>(mode, shape, params, stream)
                               : backward_of_type<float>(mode, shape, params, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace prnn
