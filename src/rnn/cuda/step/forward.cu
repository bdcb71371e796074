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

// Sums of a unit: its gates', of a GRU those of the candidate's R h and W x apart.
constexpr int kSums = 4;

// A unit of sequence n from its sums without biases.
template <class T, prnnRNNMode_t MODE>
__device__ __forceinline__ void finish_unit(const StepParams& p, int64_t unit, int n, const float (&sums)[kSums]) {
  float gate[4] = {};
#pragma unroll
  for (int g = 0; g < kSums; ++g) {
    const int64_t at = (MODE == PRNN_GRU && g == 3 ? 2 : g) * int64_t{p.hidden} + unit;
    const float of_input = MODE == PRNN_GRU && g == 2 ? 0 : load_float<T>(p.input_bias, at);
    const float of_recurrent = MODE == PRNN_GRU && g == 3 ? 0 : load_float<T>(p.recurrent_bias, at);
    gate[g] = Cell<MODE>::template activate<digits_of<T>()>(sums[g] + of_input + of_recurrent, g, 0);
  }
  const int64_t at = int64_t{n} * p.hidden + unit;
  const float before = p.carried != nullptr ? p.carried[at] : p.initial != nullptr ? load_float<T>(p.initial, at) : 0;
  const UnitForward done = Cell<MODE>::template forward<digits_of<T>()>(gate, before);
  if (p.carries != nullptr) p.carries[at] = done.carried;
  store_float<T>(p.out, n * p.out_stride + unit, done.h);
  if (p.hy != nullptr) store_float<T>(p.hy, at, done.h);
  if (Cell<MODE>::kHasCellState && p.cy != nullptr) store_float<T>(p.cy, at, done.carried);
}

template <class T, prnnRNNMode_t MODE, int COLUMNS, bool VECTORS>
__global__ void __launch_bounds__(kWarps * 32, 3) step(const __grid_constant__ StepParams p) {
  constexpr int kGates = Cell<MODE>::kGates;
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
  // A GRU's candidate keeps W x and R h apart.
  add(std::integral_constant<int, kSums - 1>(), p.input, p.x, p.x_stride, p.inputs);
  add(std::integral_constant<int, kGates - 1>(), p.recurrent, p.h, p.h_stride, p.states);

  float own[kSums];
#pragma unroll
  for (int g = 0; g < kSums; ++g) own[g] = sum_of_lane(sums[g]);
  if (lane < count) finish_unit<T, MODE>(p, unit, first + lane, own);
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

// ---- 16 bits, on the tensor cores ----

constexpr int kSplits = 8;      // warps of a block, each with a share of K
constexpr int kRows = 16;       // of weights, which a block has
constexpr int kTileWidth = 32;  // elements of K that a quad covers with a 16-byte load each

// Adds to a warp's sums its share of the products of 16 rows of weights and TILES * 8 states. `low` and `high`: the
// lane's two rows, NULL: zeros. Along K, elements are where the loads put them, for weights and states alike.
template <class T, int TILES>
__device__ __forceinline__ void add_tiles(const T* low, const T* high, const T* states, int64_t state_stride, int batch,
                                          int width, float (&sums)[TILES][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const T* column[TILES];
#pragma unroll
  for (int i = 0; i < TILES; ++i) column[i] = states + min(i * kTileColumns + lane / 4, batch - 1) * state_stride;
#pragma unroll 4
  for (int k = warp * kTileWidth + lane % 4 * 8; k < (width + kTileWidth - 1) / kTileWidth * kTileWidth;
       k += kSplits * kTileWidth) {
    const bool is_inside = k < width;
    const auto load = [&](const T* from) {
      return is_inside && from != nullptr ? __ldg(reinterpret_cast<const uint4*>(from + k)) : uint4{};
    };
    const uint4 first = load(low), second = load(high);
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const uint4 state = load(column[i]);
      Element<T>::mma(sums[i], first.x, second.x, first.y, second.y, state.x, state.y);
      Element<T>::mma(sums[i], first.z, second.z, first.w, second.w, state.z, state.w);
    }
  }
}

// The warps' sums of 16 rows and TILES * 8 sequences.
template <int TILES>
struct Splits {
  float of_warp[kSplits][kRows][TILES * kTileColumns];

  __device__ __forceinline__ void store(const float (&sums)[TILES][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        of_warp[warp][lane / 4 + j / 2 * 8][i * kTileColumns + lane % 4 * 2 + j % 2] = sums[i][j];
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ float sum(int row, int n) const {
    float all = 0;
#pragma unroll
    for (int warp = 0; warp < kSplits; ++warp) all += of_warp[warp][row][n];
    return all;
  }
};

template <class T, prnnRNNMode_t MODE, int TILES>
__global__ void __launch_bounds__(kSplits * 32) step_mma(const __grid_constant__ StepParams p) {
  constexpr int kUnits = kRows / kSums;  // row r is sum r / kUnits of unit r % kUnits
  constexpr bool kIsGru = MODE == PRNN_GRU;
  __shared__ Splits<TILES> splits;
  float of_input[TILES][4] = {}, of_recurrent[TILES][4] = {};
  const int slot = threadIdx.x % 32 / 4;
  const auto row_of = [&](const void* weights, int width, int row, int none) -> const T* {
    const int sum = row / kUnits;
    if (kIsGru && sum == none) return nullptr;
    const int unit = min(static_cast<int>(blockIdx.x) * kUnits + row % kUnits, p.hidden - 1);
    const int gate = kIsGru && sum == 3 ? 2 : sum;
    return static_cast<const T*>(weights) + (gate * int64_t{p.hidden} + unit) * width;
  };
  const auto add = [&](const void* weights, const void* states, int64_t stride, int width, int none, auto& sums) {
    if (states == nullptr) return;
    add_tiles<T>(row_of(weights, width, slot, none), row_of(weights, width, slot + 8, none),
                 static_cast<const T*>(states), stride, p.batch, width, sums);
  };
  add(p.input, p.x, p.x_stride, p.inputs, 2, of_input);
  add(p.recurrent, p.h, p.h_stride, p.states, 3, of_recurrent);
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Rows 8 to 11 of a GRU are the candidate's R h, and the last ones its W x.
      const bool is_candidate = kIsGru && j >= 2;
      of_input[i][j] = !is_candidate ? of_input[i][j] + of_recurrent[i][j]
                       : slot < 4    ? of_recurrent[i][j]
                                     : of_input[i][j];
    }
  }
  splits.store(of_input);
  for (int i = threadIdx.x; i < kUnits * p.batch; i += blockDim.x) {
    const int place = i % kUnits, n = i / kUnits;
    const int64_t unit = int64_t{blockIdx.x} * kUnits + place;
    if (unit >= p.hidden) continue;
    float own[kSums];
#pragma unroll
    for (int g = 0; g < kSums; ++g) own[g] = splits.sum(g * kUnits + place, n);
    finish_unit<T, MODE>(p, unit, n, own);
  }
}

template <class T, int TILES>
__global__ void __launch_bounds__(kSplits * 32) projection_mma(const __grid_constant__ ProjectionParams p) {
  __shared__ Splits<TILES> splits;
  float sums[TILES][4] = {};
  const int64_t first = int64_t{blockIdx.x} * kRows, own = first + threadIdx.x % 32 / 4;
  const auto row_of = [&](int64_t row) {
    return static_cast<const T*>(p.weights) + min(row, int64_t{p.states - 1}) * p.hidden;
  };
  add_tiles<T>(row_of(own), row_of(own + 8), static_cast<const T*>(p.m), p.m_stride, p.batch, p.hidden, sums);
  splits.store(sums);
  for (int i = threadIdx.x; i < kRows * p.batch; i += blockDim.x) {
    const int place = i % kRows, n = i / kRows;
    const int64_t row = first + place;
    if (row >= p.states) continue;
    const float sum = splits.sum(place, n);
    store_float<T>(p.h, n * p.h_stride + row, sum);
    if (p.hy != nullptr) store_float<T>(p.hy, int64_t{n} * p.states + row, sum);
  }
}

// ---- launches ----

template <int COLUMNS, bool VECTORS>
struct Simt {};
template <int TILES>
struct Mma {};

// Calls launch(type, Simt or Mma) for the kernels that take the values; is_aligned: rows are whole 16 bytes.
template <class Launch>
cudaError_t with_kernel(prnnDataType_t type, int batch, bool is_aligned, const Launch& launch) {
  const auto with_mma = [&](auto* tag) {
    if (!is_aligned) {
      launch(tag, Simt<8, false>());
    } else if (batch <= 8) {
      launch(tag, Mma<1>());
    } else {
      launch(tag, Mma<2>());
    }
  };
  const auto with_simt = [&](auto* tag) {
    if (!is_aligned) {
      launch(tag, Simt<8, false>());
    } else if (batch == 1) {
      launch(tag, Simt<1, true>());
    } else if (batch <= 4) {
      launch(tag, Simt<4, true>());
    } else {
      launch(tag, Simt<8, true>());
    }
  };
  if (type != PRNN_DATA_FLOAT && batch > 2 * kTileColumns) return cudaErrorInvalidValue;
  switch (type) {
    case PRNN_DATA_FLOAT: with_simt(static_cast<float*>(nullptr)); break;
    case PRNN_DATA_HALF: with_mma(static_cast<__half*>(nullptr)); break;
    case PRNN_DATA_BFLOAT16: with_mma(static_cast<__nv_bfloat16*>(nullptr)); break;
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

unsigned blocks_for(int rows, int of_block) { return static_cast<unsigned>((rows + of_block - 1) / of_block); }

template <class T, prnnRNNMode_t MODE, int COLUMNS, bool VECTORS>
void launch(Simt<COLUMNS, VECTORS>, const StepParams& p, cudaStream_t stream) {
  const dim3 grid(blocks_for(p.hidden, kWarps), blocks_for(p.batch, COLUMNS));
  step<T, MODE, COLUMNS, VECTORS><<<grid, kWarps * 32, 0, stream>>>(p);
}
template <class T, prnnRNNMode_t MODE, int TILES>
void launch(Mma<TILES>, const StepParams& p, cudaStream_t stream) {
  step_mma<T, MODE, TILES><<<blocks_for(p.hidden, kRows / kSums), kSplits * 32, 0, stream>>>(p);
}

template <class T, int COLUMNS, bool VECTORS>
void launch(Simt<COLUMNS, VECTORS>, const ProjectionParams& p, cudaStream_t stream) {
  const dim3 grid(blocks_for(p.states, kWarps), blocks_for(p.batch, COLUMNS));
  projection<T, COLUMNS, VECTORS><<<grid, kWarps * 32, 0, stream>>>(p);
}
template <class T, int TILES>
void launch(Mma<TILES>, const ProjectionParams& p, cudaStream_t stream) {
  projection_mma<T, TILES><<<blocks_for(p.states, kRows), kSplits * 32, 0, stream>>>(p);
}

}  // namespace

cudaError_t run_step(prnnDataType_t type, prnnRNNMode_t mode, const StepParams& p, cudaStream_t stream) {
  if (mode != PRNN_LSTM && mode != PRNN_GRU) return cudaErrorInvalidValue;
  const int64_t element = type == PRNN_DATA_FLOAT ? 4 : 2;
  const bool is_aligned = are_aligned({p.x, p.h, p.input, p.recurrent}, {p.x_stride * element, p.h_stride * element,
                                                                         p.inputs * element, p.states * element});
  return with_kernel(type, p.batch, is_aligned, [&](auto* tag, auto kernel) {
    using T = std::remove_pointer_t<decltype(tag)>;
    if (mode == PRNN_LSTM) {
      launch<T, PRNN_LSTM>(kernel, p, stream);
    } else {
      launch<T, PRNN_GRU>(kernel, p, stream);
    }
  });
}

cudaError_t run_projection(prnnDataType_t type, const ProjectionParams& p, cudaStream_t stream) {
  const int64_t element = type == PRNN_DATA_FLOAT ? 4 : 2;
  const bool is_aligned = are_aligned({p.m, p.weights}, {p.m_stride * element, p.hidden * element});
  return with_kernel(type, p.batch, is_aligned,
                     [&](auto* tag, auto kernel) { launch<std::remove_pointer_t<decltype(tag)>>(kernel, p, stream); });
}

}  // namespace prnn
