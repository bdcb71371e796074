#include "rnn/cuda/step/forward.h"

#include <initializer_list>

#include "rnn/cuda/common/unit_io.cuh"

namespace prnn {
namespace {

constexpr int kWarps = 4;  // of a block; each has a unit, or a row of the projection

template <class T, bool VECTORS>
struct alignas(VECTORS ? 16 : sizeof(T)) Load {
  static constexpr int kElements = VECTORS ? 16 / sizeof(T) : 1;
  T value[kElements];
};

// Adds the products of ROWS rows of weights, `stride` elements apart, with COLUMNS states to sums[row][column], the
// last row's to sums[LAST]: a lane's share of them. States beyond `count` are the last one again.
template <class T, bool VECTORS, int ROWS, int LAST, int SUMS, int COLUMNS>
__device__ __forceinline__ void add_products(const T* weights, int64_t stride, const T* states, int64_t state_stride,
                                             int count, int width, float (&sums)[SUMS][COLUMNS]) {
  using Values = Load<T, VECTORS>;
  const auto load = [](const T* from) {
    Values values;
    if constexpr (VECTORS) {
      reinterpret_cast<uint4&>(values) = __ldg(reinterpret_cast<const uint4*>(from));
    } else {
      values.value[0] = *from;
    }
    return values;
  };
#pragma unroll(COLUMNS == 1 ? 4 : 2)
  for (int k = threadIdx.x % 32 * Values::kElements; k < width; k += 32 * Values::kElements) {
    Values row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) row[r] = load(weights + r * stride + k);
#pragma unroll
    for (int n = 0; n < COLUMNS; ++n) {
      const Values state = load(states + min(n, count - 1) * state_stride + k);
#pragma unroll
      for (int e = 0; e < Values::kElements; ++e) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          sums[r == ROWS - 1 ? LAST : r][n] +=
              Element<T>::to_float(row[r].value[e]) * Element<T>::to_float(state.value[e]);
        }
      }
    }
  }
}

// Leaves in lane n the sum over the warp of column n.
template <int COLUMNS>
__device__ __forceinline__ float sum_of_lane(const float (&sums)[COLUMNS]) {
  float own = 0;
#pragma unroll
  for (int n = 0; n < COLUMNS; ++n) {
    float sum = sums[n];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, distance);
    if (threadIdx.x % 32 == n) own = sum;
  }
  return own;
}

template <class T, prnnRNNMode_t MODE, int COLUMNS, bool VECTORS>
__global__ void __launch_bounds__(kWarps * 32, 3) step(const __grid_constant__ StepParams p) {
  constexpr int kGates = Cell<MODE>::kGates, kSums = kGates > 1 ? 4 : 1;
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int first = blockIdx.y * COLUMNS, count = min(p.batch - first, COLUMNS), lane = threadIdx.x % 32;
  if (unit >= p.hidden) return;
  float sums[kSums][COLUMNS] = {};
  const auto add = [&](auto last, const void* weights, const void* states, int64_t stride, int width) {
    if (states == nullptr) return;
    add_products<T, VECTORS, kGates, decltype(last)::value>(
        static_cast<const T*>(weights) + unit * width, int64_t{p.hidden} * width,
        static_cast<const T*>(states) + first * stride, stride, count, width, sums);
  };
  // Of a GRU's candidate, W x and R h are apart.
  add(std::integral_constant<int, kSums - 1>(), p.input, p.x, p.x_stride, p.inputs);
  add(std::integral_constant<int, kGates - 1>(), p.recurrent, p.h, p.h_stride, p.states);

  float gate[4] = {};
#pragma unroll
  for (int g = 0; g < kSums; ++g) {
    const int64_t at = (MODE == PRNN_GRU && g == 3 ? 2 : g) * int64_t{p.hidden} + unit;
    const float of_input = MODE == PRNN_GRU && g == 2 ? 0 : load_float<T>(p.input_bias, at);
    const float of_recurrent = MODE == PRNN_GRU && g == 3 ? 0 : load_float<T>(p.recurrent_bias, at);
    gate[g] = Cell<MODE>::template activate<kExact<T>>(sum_of_lane(sums[g]) + of_input + of_recurrent, g, p.relu);
  }
  if (lane >= count) return;
  const int n = first + lane;
  const int64_t at = int64_t{n} * p.hidden + unit;
  float h = gate[0], carried = 0;
  if constexpr (kGates > 1) {
    const float before = p.carried != nullptr ? p.carried[at] : p.initial != nullptr ? load_float<T>(p.initial, at) : 0;
    const UnitForward done = Cell<MODE>::template forward<kExact<T>>(gate, before);
    h = done.h;
    carried = done.carried;
    if (p.carries != nullptr) p.carries[at] = carried;
  }
  store_float<T>(p.out, n * p.out_stride + unit, h);
  if (p.hy != nullptr) store_float<T>(p.hy, at, h);
  if (Cell<MODE>::kHasCellState && p.cy != nullptr) store_float<T>(p.cy, at, carried);
}

template <class T, int COLUMNS, bool VECTORS>
__global__ void __launch_bounds__(kWarps * 32, 3) projection(const __grid_constant__ ProjectionParams p) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int first = blockIdx.y * COLUMNS, count = min(p.batch - first, COLUMNS), lane = threadIdx.x % 32;
  if (row >= p.states) return;
  float sums[1][COLUMNS] = {};
  add_products<T, VECTORS, 1, 0>(static_cast<const T*>(p.weights) + row * p.hidden, 0,
                                 static_cast<const T*>(p.m) + first * p.m_stride, p.m_stride, count, p.hidden, sums);
  const float sum = sum_of_lane(sums[0]);
  if (lane >= count) return;
  const int n = first + lane;
  store_float<T>(p.h, n * p.h_stride + row, sum);
  if (p.hy != nullptr) store_float<T>(p.hy, int64_t{n} * p.states + row, sum);
}

// Calls launch(type, columns, whether rows are read 16 bytes at a time) with the values as types. Of `data`, what a
// row of `bytes` begins at has to be a multiple of 16 bytes for that.
template <class Launch>
cudaError_t with_shape(prnnDataType_t type, int batch, bool is_aligned, const Launch& launch) {
  const auto with_type = [&](auto* tag) {
    if (!is_aligned) {
      launch(tag, std::integral_constant<int, 8>(), std::false_type());
    } else if (batch == 1) {
      launch(tag, std::integral_constant<int, 1>(), std::true_type());
    } else if (batch <= 4) {
      launch(tag, std::integral_constant<int, 4>(), std::true_type());
    } else {
      launch(tag, std::integral_constant<int, 8>(), std::true_type());
    }
  };
  switch (type) {
    case PRNN_DATA_FLOAT: with_type(static_cast<float*>(nullptr)); break;
    case PRNN_DATA_HALF: with_type(static_cast<__half*>(nullptr)); break;
    case PRNN_DATA_BFLOAT16: with_type(static_cast<__nv_bfloat16*>(nullptr)); break;
    case PRNN_DATA_DOUBLE: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

bool are_aligned(std::initializer_list<const void*> pointers, std::initializer_list<int64_t> bytes) {
  int64_t bits = 0;
  for (const void* pointer : pointers) bits |= static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
  for (int64_t count : bytes) bits |= count;
  return bits % 16 == 0;
}

dim3 grid_for(int rows, int batch, int columns) {
  return dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps),
              static_cast<unsigned>((batch + columns - 1) / columns));
}

}  // namespace

cudaError_t run_step(prnnDataType_t type, prnnRNNMode_t mode, const StepParams& p, cudaStream_t stream) {
  const int64_t element = type == PRNN_DATA_FLOAT ? 4 : 2;
  const bool is_aligned = are_aligned({p.x, p.h, p.input, p.recurrent}, {p.x_stride * element, p.h_stride * element,
                                                                         p.inputs * element, p.states * element});
  return with_shape(type, p.batch, is_aligned, [&](auto* tag, auto columns, auto vectors) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kColumns = decltype(columns)::value;
    constexpr bool kVectors = decltype(vectors)::value;
    const dim3 grid = grid_for(p.hidden, p.batch, kColumns);
    switch (mode) {
      case PRNN_LSTM: step<T, PRNN_LSTM, kColumns, kVectors><<<grid, kWarps * 32, 0, stream>>>(p); break;
      case PRNN_GRU: step<T, PRNN_GRU, kColumns, kVectors><<<grid, kWarps * 32, 0, stream>>>(p); break;
      default: step<T, PRNN_RNN_TANH, kColumns, kVectors><<<grid, kWarps * 32, 0, stream>>>(p); break;
    }
  });
}

cudaError_t run_projection(prnnDataType_t type, const ProjectionParams& p, cudaStream_t stream) {
  const int64_t element = type == PRNN_DATA_FLOAT ? 4 : 2;
  const bool is_aligned = are_aligned({p.m, p.weights}, {p.m_stride * element, p.hidden * element});
  return with_shape(type, p.batch, is_aligned, [&](auto* tag, auto columns, auto vectors) {
    using T = std::remove_pointer_t<decltype(tag)>;
    constexpr int kColumns = decltype(columns)::value;
    const dim3 grid = grid_for(p.states, p.batch, kColumns);
    projection<T, kColumns, decltype(vectors)::value><<<grid, kWarps * 32, 0, stream>>>(p);
  });
}

}  // namespace prnn
