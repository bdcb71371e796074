// Weights in the form in which the search reads them.
#include <algorithm>

#include "decode/cuda/params.h"
#include "decode/cuda/product.cuh"
#include "rnn/cuda/common/weights.cuh"

namespace prnn::decode_cuda {
namespace {

constexpr int kPrepareThreads = 256;

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_div(items, kPrepareThreads), 1 << 20));
}

// Rows of a matrix in the order of the search's row tiles.
struct PlainRows {
  int64_t rows;
  __device__ int64_t source(int64_t row) const { return row < rows ? row : -1; }
};
// The durations begin a row tile.
struct OutputRows {
  int64_t classes, durations, class_rows;
  __device__ int64_t source(int64_t row) const {
    if (row < class_rows) return row < classes ? row : -1;
    return row - class_rows < durations ? classes + row - class_rows : -1;
  }
};
// The gates of a unit beside each other, in the order of Cell: a GRU's third is of the recurrent product alone, its
// fourth of the input product.
struct GateRows {
  int64_t hidden;
  bool is_gru, is_input;
  __device__ int64_t source(int64_t row) const {
    const int64_t unit = row / 4, gate = row % 4;
    if (unit >= hidden) return -1;
    if (!is_gru || gate < 2) return gate * hidden + unit;
    return (gate == 3) == is_input ? 2 * hidden + unit : -1;
  }
};

// A row tile's k-tile is 64 vecs, two for each lane: the operands of the two instructions.
template <class T, class Rows>
__global__ void pack_kernel(Rows rows, const T* weights, int64_t k, int tiles, int k_tiles, uint4* fragments) {
  constexpr int kElements = 16 / sizeof(T), kKTile = kKTileBytes / sizeof(T);
  const int64_t count = static_cast<int64_t>(tiles) * k_tiles * 32;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kPrepareThreads) {
    const int lane = static_cast<int>(i % 32);
    const int64_t pair = i / 32, tile = pair / k_tiles, from = pair % k_tiles * kKTile + lane % 4 * kElements;
    const auto load = [&](int64_t row) -> uint4 {
      const int64_t source = rows.source(tile * kTileRows + row);
      if (source < 0) return {0, 0, 0, 0};
      return load_row_fragment(weights, source * k + from, static_cast<int>(k - from));
    };
    const WeightOperands operands = operands_of(load(lane / 4), load(lane / 4 + 8));
    fragments[pair * kTileVecs + lane] = operands.first;
    fragments[pair * kTileVecs + 32 + lane] = operands.second;
  }
}

template <class T, class Rows>
__global__ void bias_kernel(Rows rows, const T* bias, int64_t count, float* to) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kPrepareThreads) {
    const int64_t source = rows.source(i);
    to[i] = source < 0 || bias == nullptr ? 0 : Element<T>::to_float(bias[source]);
  }
}

// Both biases of the gates.
template <class T>
__device__ float gate_bias(const T* input, const T* recurrent, bool is_gru, int64_t hidden, int64_t row) {
  const int64_t of_input = GateRows{hidden, is_gru, true}.source(row);
  const int64_t of_recurrent = GateRows{hidden, is_gru, false}.source(row);
  return (of_input < 0 || input == nullptr ? 0 : Element<T>::to_float(input[of_input])) +
         (of_recurrent < 0 || recurrent == nullptr ? 0 : Element<T>::to_float(recurrent[of_recurrent]));
}

template <class T>
__global__ void gate_bias_kernel(const T* input, const T* recurrent, bool is_gru, int64_t hidden, int64_t count,
                                 float* to) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kPrepareThreads)
    to[i] = gate_bias(input, recurrent, is_gru, hidden, i);
}

// The biases of all rows, for every symbol.
template <class T>
__global__ void table_bias_kernel(const T* input, const T* recurrent, bool is_gru, int64_t hidden, int64_t rows,
                                  int64_t count, T* table) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kPrepareThreads)
    table[i] = Element<T>::from_float(gate_bias(input, recurrent, is_gru, hidden, i % rows));
}

// A matrix's rows in another order, zeros where there is none.
template <class T>
__global__ void order_kernel(GateRows rows, const T* weights, int64_t size, int64_t count, T* to) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kPrepareThreads) {
    const int64_t source = rows.source(i / size);
    to[i] = source < 0 ? Element<T>::from_float(0) : weights[source * size + i % size];
  }
}

template <class T, class Rows>
void pack(const Rows& rows, const void* weights, int64_t k, const RowTiles& tiles, uint4* fragments,
          cudaStream_t stream) {
  const unsigned blocks = blocks_for(int64_t{tiles.count} * tiles.k_tiles * 32);
  pack_kernel<<<blocks, kPrepareThreads, 0, stream>>>(rows, static_cast<const T*>(weights), k, tiles.count,
                                                      tiles.k_tiles, fragments);
}

template <class T, class Rows>
void convert_bias(const Rows& rows, const void* bias, const RowTiles& tiles, float* to, cudaStream_t stream) {
  const int64_t count = int64_t{tiles.count} * kTileRows;
  bias_kernel<<<blocks_for(count), kPrepareThreads, 0, stream>>>(rows, static_cast<const T*>(bias), count, to);
}

}  // namespace

template <class T>
cudaError_t run_prepare(const prnnTransducerModel_t& model, const prnnTransducerWeights_t& weights,
                        const SearchPlan& plan, const Prepared& prepared, cudaStream_t stream) {
  const auto as = [](const void* pointer) { return static_cast<const T*>(pointer); };
  const int64_t hidden = model.hiddenSize;
  const OutputRows output{model.classes, model.durationCount, int64_t{plan.class_tiles(model.classes)} * kTileRows};
  const PlainRows projection{model.joinerSize};
  pack<T>(output, weights.outputWeight, model.joinerSize, plan.tiles[kOutput], prepared.fragments[kOutput], stream);
  convert_bias<T>(output, weights.outputBias, plan.tiles[kOutput], prepared.output_bias, stream);
  pack<T>(projection, weights.predictorWeight, hidden, plan.tiles[kProjection], prepared.fragments[kProjection],
          stream);
  convert_bias<T>(projection, weights.predictorBias, plan.tiles[kProjection], prepared.projection_bias, stream);
  if (plan.layers == 0) {
    const cudaError_t error = cudaGetLastError();  // of the launches so far: the copy does not tell of it
    if (error != cudaSuccess) return error;
    const size_t bytes = static_cast<size_t>(model.context * model.classes * hidden) * sizeof(T);
    return cudaMemcpyAsync(prepared.embedding, weights.embedding, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  const bool is_gru = model.predictor == PRNN_PREDICTOR_GRU;
  const GateRows inputs{hidden, is_gru, true}, recurrent{hidden, is_gru, false};
  const int64_t count = int64_t{plan.tiles[kRecurrent].count} * kTileRows, size = model.embeddingSize;
  table_bias_kernel<<<blocks_for(model.classes * count), kPrepareThreads, 0, stream>>>(
      as(weights.inputBiases[0]), as(weights.recurrentBiases[0]), is_gru, hidden, count, model.classes * count,
      static_cast<T*>(prepared.table));
  order_kernel<<<blocks_for(count * size), kPrepareThreads, 0, stream>>>(
      inputs, as(weights.inputWeights[0]), size, count * size, static_cast<T*>(prepared.table_weights));
  pack<T>(recurrent, weights.recurrentWeights[0], hidden, plan.tiles[kRecurrent], prepared.fragments[kRecurrent],
          stream);
  if (plan.layers == 1) return cudaGetLastError();
  pack<T>(inputs, weights.inputWeights[1], hidden, plan.tiles[kUpperInput], prepared.fragments[kUpperInput], stream);
  pack<T>(recurrent, weights.recurrentWeights[1], hidden, plan.tiles[kUpperRecurrent],
          prepared.fragments[kUpperRecurrent], stream);
  gate_bias_kernel<<<blocks_for(count), kPrepareThreads, 0, stream>>>(
      as(weights.inputBiases[1]), as(weights.recurrentBiases[1]), is_gru, hidden, count, prepared.upper_bias);
  return cudaGetLastError();
}

template cudaError_t run_prepare<float>(const prnnTransducerModel_t&, const prnnTransducerWeights_t&, const SearchPlan&,
                                        const Prepared&, cudaStream_t);
template cudaError_t run_prepare<__half>(const prnnTransducerModel_t&, const prnnTransducerWeights_t&,
                                         const SearchPlan&, const Prepared&, cudaStream_t);
template cudaError_t run_prepare<__nv_bfloat16>(const prnnTransducerModel_t&, const prnnTransducerWeights_t&,
                                                const SearchPlan&, const Prepared&, cudaStream_t);

}  // namespace prnn::decode_cuda
