#include "rnn/cuda/layer/kernels.h"

#include <algorithm>

#include "core/cuda/philox.cuh"
#include "core/descriptors.h"
#include "rnn/cuda/common/activations.cuh"
#include "rnn/cuda/common/element.cuh"
#include "rnn/cuda/common/step_io.cuh"

namespace prnn {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 2048;  // loops stride over the rest

unsigned blocks_for(int64_t elements) {
  return static_cast<unsigned>(std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
}

__device__ int64_t first_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t index_stride() { return int64_t{gridDim.x} * blockDim.x; }

template <class T>
__global__ void pad_states(const T* from, T* to, int64_t batch, int hidden, int padded) {
  for (int64_t i = first_index(); i < batch * padded; i += index_stride()) {
    const int64_t n = i / padded, unit = i % padded;
    const float value = from != nullptr && unit < hidden ? Element<T>::to_float(from[n * hidden + unit]) : 0;
    to[i] = Element<T>::from_float(isnan(value) ? __uint_as_float(0x7FFFFFFFu) : value);
  }
}

// A block for each kTile x kTile elements, of kTile x kTile / 4 threads.
constexpr int kTile = 32;
__global__ void transpose_gates(const float* from, float* to, int gates, int hidden, int pitch, int width) {
  __shared__ float tile[kTile][kTile + 1];
  const int rows = gates * pitch, row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  for (int i = threadIdx.y; i < kTile; i += blockDim.y) {
    const int gate = (row + i) / pitch, unit = (row + i) % pitch, k = column + threadIdx.x;
    const bool is_there = gate < gates && unit < hidden && k < width;
    tile[i][threadIdx.x] = is_there ? from[(int64_t{gate} * hidden + unit) * width + k] : 0;
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile && column + i < width; i += blockDim.y) {
    const int to_row = row + threadIdx.x;
    if (to_row < rows) to[int64_t{column + i} * rows + to_row] = tile[threadIdx.x][i];
  }
}

constexpr int kStepsAtOnce = 384;
struct StepChunk {
  StepSizes step[kStepsAtOnce];
};

__global__ void store_steps(const __grid_constant__ StepChunk chunk, StepSizes* to, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = chunk.step[i];
}

// Timestep t of PreviousStates or ResetRows, the one before it in the direction, and which of them is later; no
// sequences outside them.
template <class Params>
struct StepAndBefore {
  __device__ StepAndBefore(const Params& p, int t)
      : step(at(p, t)), before(at(p, p.reverse ? t + 1 : t - 1)), later(p.reverse ? before : step) {}
  __device__ static StepSizes at(const Params& p, int t) {
    if (t < 0 || t >= p.steps) return {0, 0};
    return p.table != nullptr ? p.table[t] : StepSizes{t * p.batch, p.batch};
  }
  // Whether sequence n starts anew with timestep t.
  __device__ bool restarts(const Params& p, int n) const {
    return p.reset != nullptr && n < later.batch && p.reset[later.row + n] != 0;
  }
  const StepSizes step, before, later;
};

template <class T>
__global__ void previous_states(const __grid_constant__ PreviousStates p) {
  const T *y = static_cast<const T*>(p.y), *hx = static_cast<const T*>(p.hx), *add = static_cast<const T*>(p.add);
  const T *const reset_hx = static_cast<const T*>(p.reset_hx), *const mask = static_cast<const T*>(p.mask);
  for (int t = blockIdx.y; t < p.steps; t += gridDim.y) {
    const StepAndBefore<PreviousStates> here(p, t);
    const StepSizes step = here.step, other = here.before;
    T* const out = static_cast<T*>(p.out) + int64_t{step.row} * p.width;
    for (int64_t i = first_index(); i < int64_t{step.batch} * p.width; i += index_stride()) {
      const int n = static_cast<int>(i / p.width), unit = static_cast<int>(i % p.width);
      const bool is_reset = here.restarts(p, n) && (n < other.batch || !p.are_gradients);
      const T* const initial = is_reset ? reset_hx : hx;
      T state = !is_reset && n < other.batch ? y[int64_t{other.row + n} * p.y_row + unit]
                : initial != nullptr         ? initial[i]
                                             : Element<T>::from_float(0);
      if (mask != nullptr) state = Element<T>::from_float(Element<T>::to_float(state) * Element<T>::to_float(mask[i]));
      out[i] = add == nullptr ? state
                              : Element<T>::from_float(Element<T>::to_float(state) +
                                                       Element<T>::to_float(add[(step.row + n) * p.add_row + unit]));
    }
  }
}

template <class T>
__global__ void zone_out(const __grid_constant__ ZonedGates p) {
  const T mark = Element<T>::from_float(p.mark), instead = Element<T>::from_float(p.instead);
  for (int64_t i = first_index(); i < p.rows * p.hidden; i += index_stride()) {
    const int64_t row = i / p.hidden, unit = i % p.hidden;
    T& gate = static_cast<T*>(p.gate)[row * p.row + unit];
    if (p.mask[row * p.mask_row + unit] != 0) {
      gate = mark;
    } else if (Element<T>::to_float(gate) == p.mark) {
      gate = instead;
    }
  }
}

// Sequence n's row in packed data at its first or last timestep.
__device__ int64_t edge_row(const EdgeRows& edge, int n) {
  if (!edge.is_last) return n;
  if (edge.table == nullptr) return int64_t{edge.steps - 1} * edge.batch + n;
  int low = 0, high = edge.steps - 1;  // the last timestep with more than n sequences
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (edge.table[middle].batch > n) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return int64_t{edge.table[low].row} + n;
}

// Calls body(element of the edge's row, element of [N, width], whether the row is reset).
template <class T, class Body>
__device__ void for_each_of_edge(const EdgeRows& edge, const Body& body) {
  for (int64_t i = first_index(); i < int64_t{edge.batch} * edge.width; i += index_stride()) {
    const int64_t row = edge_row(edge, static_cast<int>(i / edge.width));
    body(static_cast<T*>(edge.rows)[row * edge.stride + i % edge.width], i,
         edge.reset != nullptr && edge.reset[row] != 0);
  }
}

template <class T>
__global__ void copy_edge_rows(const __grid_constant__ EdgeRows from, T* to) {
  for_each_of_edge<T>(from, [&](const T& element, int64_t i, bool is_reset) {
    to[i] = is_reset ? Element<T>::from_float(0) : element;
  });
}

template <class T>
__device__ void add_to(T& element, float value) {
  element = Element<T>::from_float(Element<T>::to_float(element) + value);
}

template <class T>
__global__ void add_edge_rows(const float* products, const __grid_constant__ EdgeRows to) {
  for_each_of_edge<T>(to, [&](T& element, int64_t i, bool is_reset) {
    if (!is_reset) add_to(element, products[i]);
  });
}

// A block has timesteps and sequences; most rows are not reset.
template <class T>
__global__ void add_reset_rows(const float* products, const __grid_constant__ ResetRows to) {
  for (int t = blockIdx.x; t < to.steps; t += gridDim.x) {
    const StepAndBefore<ResetRows> here(to, t);
    for (int n = blockIdx.y; n < here.step.batch; n += gridDim.y) {
      if (!here.restarts(to, n)) continue;
      T* const row = static_cast<T*>(to.rows) + int64_t{here.step.row + n} * to.stride;
      for (int i = threadIdx.x; i < to.width; i += blockDim.x) add_to(row[i], products[int64_t{n} * to.width + i]);
    }
  }
}

template <class T>
__global__ void sum_reset_rows(const __grid_constant__ ResetRows from, T* sums) {
  for (int n = blockIdx.x; n < from.batch; n += gridDim.x) {
    for (int i = threadIdx.x; i < from.width; i += blockDim.x) {
      float sum = 0;
      for (int t = 0; t < from.steps; ++t) {
        const StepAndBefore<ResetRows> here(from, t);
        if (n >= here.step.batch || !here.restarts(from, n)) continue;
        sum += Element<T>::to_float(static_cast<const T*>(from.rows)[int64_t{here.step.row + n} * from.stride + i]);
      }
      sums[int64_t{n} * from.width + i] = Element<T>::from_float(sum);
    }
  }
}

template <class T>
__global__ void round_floats(const float* from, T* to, int64_t count) {
  for (int64_t i = first_index(); i < count; i += index_stride()) to[i] = Element<T>::from_float(from[i]);
}

template <class T>
__global__ void sum_gates(const __grid_constant__ GateSum p) {
  const T *gates = static_cast<const T*>(p.gates), *candidate = static_cast<const T*>(p.candidate);
  T* const out = static_cast<T*>(p.out);
  for (int64_t i = first_index(); i < p.rows * p.hidden; i += index_stride()) {
    const int64_t row = i / p.hidden, unit = i % p.hidden;
    float sum = p.accumulate ? Element<T>::to_float(out[i]) : 0;
    for (int g = 0; g < p.count; ++g) sum += Element<T>::to_float(gates[row * p.row_stride + g * p.gate_stride + unit]);
    if (candidate != nullptr) sum += Element<T>::to_float(candidate[row * p.candidate_stride + unit]);
    out[i] = Element<T>::from_float(sum);
  }
}

template <class T>
__global__ void copy_gates(const __grid_constant__ GateCopy p) {
  const T* const from = static_cast<const T*>(p.from);
  T* const to = static_cast<T*>(p.to);
  for (int64_t i = first_index(); i < p.rows * p.gates * p.hidden; i += index_stride()) {
    const int64_t row = i / (p.gates * p.hidden), rest = i % (p.gates * p.hidden);
    const int64_t gate = rest / p.hidden, unit = rest % p.hidden;
    to[row * p.to_row + gate * p.to_gate + unit] = from[row * p.from_row + gate * p.from_gate + unit];
  }
}

template <class T>
__global__ void add_bias_gradients(int gates, bool is_gru, const float* sums, int partials, int hidden, T* input_bias,
                                   T* recurrent_bias) {
  const int biases = gates == 1 ? 1 : 4;
  for (int64_t i = first_index(); i < int64_t{biases} * hidden; i += index_stride()) {
    const int bias = static_cast<int>(i / hidden);
    float sum = 0;
    for (int s = 0; s < partials; ++s) sum += sums[int64_t{s} * biases * hidden + i];
    // A GRU's 2 and 3 are the candidate's bR and bW.
    const int64_t at = is_gru && bias == 3 ? i - hidden : i;
    if (!is_gru || bias != 2) input_bias[at] = Element<T>::from_float(Element<T>::to_float(input_bias[at]) + sum);
    if (!is_gru || bias != 3) {
      recurrent_bias[at] = Element<T>::from_float(Element<T>::to_float(recurrent_bias[at]) + sum);
    }
  }
}

// The random numbers of elements 4 block to 4 block + 3.
struct DropoutRandom {
  uint64_t seed, call;
  uint32_t layer;

  __device__ DropoutRandom(const uint64_t* draw, uint32_t of_layer) : seed(draw[0]), call(draw[1]), layer(of_layer) {}
  __device__ void of_block(int64_t block, uint32_t (&random)[4]) const {
    random[0] = static_cast<uint32_t>(block);
    random[1] = static_cast<uint32_t>(block >> 32) | layer << 16;
    random[2] = static_cast<uint32_t>(call);
    random[3] = static_cast<uint32_t>(call >> 32);
    philox(random, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
};

template <class T>
__global__ void dropout(uint32_t threshold, float scale, const uint64_t* draw, uint32_t layer, int64_t first_block,
                        int64_t count, const T* in, T* out) {
  const DropoutRandom numbers(draw, layer);
  const bool aligned = (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out)) % sizeof(Four<T>) == 0;
  for (int64_t block = first_index(); block * 4 < count; block += index_stride()) {
    const int64_t first = block * 4;
    const bool is_whole = aligned && first + 4 <= count;
    Four<T> four{};
    if (is_whole) {
      four = reinterpret_cast<const Four<T>*>(in)[block];
    } else {
      for (int i = 0; i < 4 && first + i < count; ++i) four.value[i] = in[first + i];
    }
    uint32_t random[4];
    numbers.of_block(first_block + block, random);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = Element<T>::to_float(four.value[i]);
      four.value[i] = Element<T>::from_float(random[i] >= threshold ? value * scale : 0);
    }
    if (is_whole) {
      reinterpret_cast<Four<T>*>(out)[block] = four;
    } else {
      for (int i = 0; i < 4 && first + i < count; ++i) out[first + i] = four.value[i];
    }
  }
}

__global__ void dropout_mask(uint32_t threshold, const uint64_t* draw, uint32_t layer, int64_t bytes, uint8_t* kept) {
  const DropoutRandom numbers(draw, layer);
  for (int64_t byte = first_index(); byte < bytes; byte += index_stride()) {
    uint32_t bits = 0;
    for (int half = 0; half < 2; ++half) {
      uint32_t random[4];
      numbers.of_block(byte * 2 + half, random);
      for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(random[i] >= threshold) << (half * 4 + i);
    }
    kept[byte] = static_cast<uint8_t>(bits);
  }
}

__global__ void begin_dropout(DropoutStates* states, uint64_t* draw) {
  draw[0] = states->seed;
  draw[1] = states->calls++;
}

// Random numbers from this one on keep their element.
uint32_t dropout_threshold(float probability) { return static_cast<uint32_t>(probability * 4294967296.0); }

// Calls `body` with a pointer of the problem's element type, to tell the type by.
template <class Body>
cudaError_t with_type(prnnDataType_t type, Body&& body) {
  switch (type) {
    case PRNN_DATA_HALF: body(static_cast<__half*>(nullptr)); break;
    case PRNN_DATA_BFLOAT16: body(static_cast<__nv_bfloat16*>(nullptr)); break;
    case PRNN_DATA_FLOAT: body(static_cast<float*>(nullptr)); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t run_pad_states(prnnDataType_t type, const void* from, void* to, int64_t batch, int hidden, int padded,
                           cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    pad_states<<<blocks_for(batch * padded), kThreads, 0, stream>>>(static_cast<const T*>(from), static_cast<T*>(to),
                                                                    batch, hidden, padded);
  });
}

cudaError_t run_store_steps(const std::vector<int64_t>& batch, StepSizes* to, cudaStream_t stream) {
  int64_t row = 0;
  for (size_t first = 0; first < batch.size(); first += kStepsAtOnce) {
    StepChunk chunk{};
    const int count = static_cast<int>(std::min<size_t>(kStepsAtOnce, batch.size() - first));
    for (int i = 0; i < count; ++i) {
      chunk.step[i] = {static_cast<int32_t>(row), static_cast<int32_t>(batch[first + i])};
      row += batch[first + i];
    }
    store_steps<<<1, kThreads, 0, stream>>>(chunk, to + first, count);
  }
  return cudaGetLastError();
}

cudaError_t run_previous_states(prnnDataType_t type, const PreviousStates& params, cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    const dim3 grid(
        static_cast<unsigned>(std::min<int64_t>((int64_t{params.batch} * params.width + kThreads - 1) / kThreads, 64)),
        static_cast<unsigned>(std::min(params.steps, 65535)));
    previous_states<std::remove_pointer_t<decltype(tag)>><<<grid, kThreads, 0, stream>>>(params);
  });
}

cudaError_t run_zone_out(prnnDataType_t type, const ZonedGates& params, cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    zone_out<std::remove_pointer_t<decltype(tag)>>
        <<<blocks_for(params.rows * params.hidden), kThreads, 0, stream>>>(params);
  });
}

cudaError_t run_copy_edge_rows(prnnDataType_t type, const EdgeRows& from, void* to, cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    copy_edge_rows<T><<<blocks_for(int64_t{from.batch} * from.width), kThreads, 0, stream>>>(from, static_cast<T*>(to));
  });
}

cudaError_t run_add_edge_rows(prnnDataType_t type, const float* products, const EdgeRows& to, cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    add_edge_rows<std::remove_pointer_t<decltype(tag)>>
        <<<blocks_for(int64_t{to.batch} * to.width), kThreads, 0, stream>>>(products, to);
  });
}

cudaError_t run_add_reset_rows(prnnDataType_t type, const float* products, const ResetRows& to, cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    const dim3 grid(static_cast<unsigned>(std::min(to.steps, 65535)), static_cast<unsigned>(std::min(to.batch, 64)));
    add_reset_rows<std::remove_pointer_t<decltype(tag)>><<<grid, kThreads, 0, stream>>>(products, to);
  });
}

cudaError_t run_sum_reset_rows(prnnDataType_t type, const ResetRows& from, void* sums, cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    sum_reset_rows<T><<<std::min(from.batch, 65535), kThreads, 0, stream>>>(from, static_cast<T*>(sums));
  });
}

cudaError_t run_transpose_gates(const float* from, float* to, int gates, int hidden, int pitch, int width,
                                cudaStream_t stream) {
  const auto tiles = [](int64_t count) { return static_cast<unsigned>((count + kTile - 1) / kTile); };
  transpose_gates<<<dim3(tiles(width), tiles(int64_t{gates} * pitch)), dim3(kTile, kTile / 4), 0, stream>>>(
      from, to, gates, hidden, pitch, width);
  return cudaGetLastError();
}

cudaError_t run_round(prnnDataType_t type, const float* from, void* to, int64_t count, cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    round_floats<T><<<blocks_for(count), kThreads, 0, stream>>>(from, static_cast<T*>(to), count);
  });
}

cudaError_t run_sum_gates(prnnDataType_t type, const GateSum& params, cudaStream_t stream) {
  return with_type(type, [&](auto* tag) {
    sum_gates<std::remove_pointer_t<decltype(tag)>>
        <<<blocks_for(params.rows * params.hidden), kThreads, 0, stream>>>(params);
  });
}

cudaError_t run_copy_gates(prnnDataType_t type, const GateCopy& params, cudaStream_t stream) {
  // 16 bytes at once where everything is a multiple of them.
  const int size = type == PRNN_DATA_FLOAT ? 4 : 2, together = 16 / size;
  const int64_t elements = params.from_row | params.from_gate | params.to_row | params.to_gate | params.hidden;
  const auto bits = reinterpret_cast<uintptr_t>(params.from) | reinterpret_cast<uintptr_t>(params.to);
  if (elements % together == 0 && bits % 16 == 0) {
    GateCopy whole = params;
    for (int64_t* count : {&whole.from_row, &whole.from_gate, &whole.to_row, &whole.to_gate}) *count /= together;
    whole.hidden /= together;
    copy_gates<uint4><<<blocks_for(whole.rows * whole.gates * whole.hidden), kThreads, 0, stream>>>(whole);
    return cudaGetLastError();
  }
  return with_type(type, [&](auto* tag) {
    copy_gates<std::remove_pointer_t<decltype(tag)>>
        <<<blocks_for(params.rows * params.gates * params.hidden), kThreads, 0, stream>>>(params);
  });
}

cudaError_t run_add_bias_gradients(prnnDataType_t type, prnnRNNMode_t mode, const float* sums, int partials, int hidden,
                                   void* input_bias, void* recurrent_bias, cudaStream_t stream) {
  const int gates = mode == PRNN_SLSTM_EXP ? 4 : gate_count(mode);
  return with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    add_bias_gradients<<<blocks_for(int64_t{4} * hidden), kThreads, 0, stream>>>(
        gates, mode == PRNN_GRU, sums, partials, hidden, static_cast<T*>(input_bias), static_cast<T*>(recurrent_bias));
  });
}

cudaError_t run_dropout(prnnDataType_t type, float probability, const uint64_t* draw, int64_t layer, int64_t first,
                        int64_t count, const void* in, void* out, cudaStream_t stream) {
  const uint32_t threshold = dropout_threshold(probability);
  return with_type(type, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    dropout<<<blocks_for((count + 3) / 4), kThreads, 0, stream>>>(threshold, 1 / (1 - probability), draw,
                                                                  static_cast<uint32_t>(layer), first / 4, count,
                                                                  static_cast<const T*>(in), static_cast<T*>(out));
  });
}

cudaError_t run_dropout_mask(float probability, const uint64_t* draw, int64_t layer, int64_t count, uint8_t* kept,
                             cudaStream_t stream) {
  dropout_mask<<<blocks_for(count / 8), kThreads, 0, stream>>>(dropout_threshold(probability), draw,
                                                               static_cast<uint32_t>(layer), count / 8, kept);
  return cudaGetLastError();
}

cudaError_t run_begin_dropout(void* states, uint64_t* draw, cudaStream_t stream) {
  begin_dropout<<<1, 1, 0, stream>>>(static_cast<DropoutStates*>(states), draw);
  return cudaGetLastError();
}

}  // namespace prnn
