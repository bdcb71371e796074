// The wide backward resident kernel: gated cells in 16 bits, one tile of COLUMNS sequences a group.
#pragma once

#include "rnn/cuda/resident_launch.cuh"
#include "rnn/cuda/resident_wide.cuh"

namespace prnn {

// A cluster of kWideCluster blocks owns 64 units, the rows of the product; its blocks split K, which runs over all
// gates' gradients. Each block finishes kWideUnits of the units: a lane has unit lane % 16 of one column a round.
template <class T, prnnRNNMode_t MODE, int COLUMNS>
__global__ void __launch_bounds__(kResidentThreads, 1) wide_backward(const __grid_constant__ BackwardParams params) {
  constexpr int kGates = gate_count(MODE);
  constexpr int kRounds = COLUMNS >= 16 ? COLUMNS / 16 : 1;
  constexpr int kRows = kWideCluster * kWideUnits;
  using Product = WideProduct<T, COLUMNS>;

  const ResidentSizes& sizes = params.sizes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int blocks_per_direction = sizes.blocks * sizes.groups;
  const BackwardDirection& dir = params.direction[blockIdx.x / blocks_per_direction];
  const int group = blockIdx.x % blocks_per_direction / sizes.blocks;
  const int rank = static_cast<int>(cluster_rank());
  const int cluster_unit = blockIdx.x % sizes.blocks / kWideCluster * kRows;
  const int first_unit = cluster_unit + rank * kWideUnits;
  const int hidden = sizes.hidden, padded = sizes.padded;
  const int group_column = sizes.first_column + group * sizes.columns_per_group;
  const int group_columns = min(sizes.columns_per_group, sizes.first_column + sizes.columns - group_column);

  // The ring of the product; [2][ranks][column][unit] sums of the cluster's blocks; weights beyond the registers.
  extern __shared__ __align__(1024) char ring[];
  __shared__ uint64_t barriers[2];
  float* const partial = reinterpret_cast<float*>(ring + Product::kRingBytes);
  if (threadIdx.x == 0) {
    init_barrier(&barriers[0]);
    init_barrier(&barriers[1]);
  }

  const int share = kGates * padded / kWideCluster;  // of K, in elements
  Product product;
  const T* const weights = static_cast<const T*>(dir.weights);
  product.template load_weights<true>(
      share, shared_address(ring), shared_address(partial + 2 * kRows * COLUMNS), [&](int chunk, int row, int piece) {
        const int at = chunk * kWideChunk + row, gate = (rank * share + at) / padded, k = (rank * share + at) % padded;
        const int unit = cluster_unit + piece * 8;
        return load_row_fragment(weights, (int64_t{gate} * hidden + k) * hidden + unit,
                                 at < share && k < hidden ? hidden - unit : 0);
      });
  __syncthreads();
  sync_cluster();

  const int unit = first_unit + lane % 16;
  const int own_column = warp * 2 + lane / 16;  // round r: 16 r further
  const bool exists = unit < hidden, finishes = COLUMNS > 8 || warp < 4;
  T* const dgates = static_cast<T*>(dir.dgates);
  const int row_elements = kGates * padded;
  float carried[kRounds], bias_sum[4] = {0, 0, 0, 0};  // carried: the gradient that goes past the matrix
#pragma unroll
  for (int r = 0; r < kRounds; ++r) carried[r] = 0;
  bool gave_up = false;
  int round = 0;  // steps done so far: which of two buffers, and the barriers' phase
  long long published = 0;

  // A backward step runs t downwards unless the layer's direction is reversed.
  const int start = dir.reverse ? 0 : sizes.steps - 1, stride = dir.reverse ? 1 : -1;
  Step previous, current, next = step_at(sizes, start);
  // One more step than timesteps, for the gradients of the initial states.
  const int last_step =
      dir.dhx == nullptr && dir.dcx == nullptr && sizes.table == nullptr ? sizes.steps - 1 : sizes.steps;
#pragma unroll 1
  for (int s = 0; s <= last_step; ++s) {
    previous = current;
    current = next;
    next = s + 1 < sizes.steps ? step_at(sizes, start + (s + 1) * stride) : Step{0, 0};
    const int columns = min(group_columns, max(current.batch, previous.batch) - group_column);
    if (columns <= 0) continue;

#pragma unroll
    for (int i = 0; i < Product::kSlots; ++i) {
      const int column = product.column(i);
      const T* const from = dgates + int64_t{previous.row + group_column + column} * row_elements;
      product.source[i] = reinterpret_cast<const char*>(from + rank * share + product.first_element());
      const bool reads = column < min(group_columns, previous.batch - group_column);
      product.left[i] = reads ? share - product.first_element() : 0;
    }
    if (sizes.pause_cycles > 0) {
      while (clock64() - published < sizes.pause_cycles) {
      }
    }
    product.ask();

    // What the forward pass kept for the units that this lane finishes: on its way while the gradients are. No
    // branches, so that nothing waits for it here.
    T dy[kRounds], cell[kRounds], before[kRounds];  // c (LSTM); c (LSTM) or h (GRU) a timestep earlier
    Four<T> gates[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int column = own_column + r * 16, n = group_column + column;
      const bool wanted = finishes && exists && column < group_columns && n < current.batch;
      const bool has_before = wanted && n < next.batch;
      const int u = wanted ? unit : 0, row = wanted ? current.row + n : 0, row_before = has_before ? next.row + n : row;
      const int64_t at = int64_t{row} * hidden + u;
      dy[r] = __ldcs(static_cast<const T*>(dir.dy) + (int64_t{row} * params.y_row + u));
      gates[r] = static_cast<const Four<T>*>(dir.gates)[at];
      const T* const states = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cells : dir.y);
      const T* const initial = static_cast<const T*>(MODE == PRNN_LSTM ? dir.cx : dir.hx);
      const int state_row = MODE == PRNN_LSTM ? hidden : params.y_row;
      before[r] = *(!has_before && initial != nullptr ? initial + (wanted ? int64_t{n} * hidden + u : 0)
                                                      : states + (int64_t{row_before} * state_row + u));
      if (MODE == PRNN_LSTM) cell[r] = states[at];
    }

    {
      typename Product::Sums sums;
      product.run(sums, sizes.gave_up, gave_up);
      product.store_sums(sums, ring);
    }
    __syncthreads();

    // Every block of the cluster has the sums of all the cluster's units over its own share of K: to each its units.
    const int buffer = round & 1;
    float* const own_partial = partial + buffer * kRows * COLUMNS;
    if (threadIdx.x == 0) expect_bytes(&barriers[buffer], kRows * columns * sizeof(float));
    for (int i = threadIdx.x; i < columns * (kRows / 4); i += kResidentThreads) {
      const int row = i % (kRows / 4) * 4, column = i / (kRows / 4), at = Product::sum_at(row, column);
      const float4 first = *reinterpret_cast<const float4*>(ring + Product::sums_offset(0) + at * 4);
      const float4 second = *reinterpret_cast<const float4*>(ring + Product::sums_offset(1) + at * 4);
      const float4 sum = {first.x + second.x, first.y + second.y, first.z + second.z, first.w + second.w};
      const uint32_t owner = row / kWideUnits;
      const float* const place = own_partial + (rank * COLUMNS + column) * kWideUnits + row % kWideUnits;
      send_to_rank(address_in_rank(shared_address(place), owner),
                   address_in_rank(shared_address(&barriers[buffer]), owner), sum);
    }
    Patience patience;
    while (!gave_up && !__all_sync(kWholeWarp, has_completed(&barriers[buffer], round / 2 & 1))) {
      if (!__all_sync(kWholeWarp, patience.lasts(sizes.gave_up))) gave_up = true;
    }
    ++round;

    if (finishes) {
      float da[kRounds][4];
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int column = own_column + r * 16, n = group_column + column;
        const bool in_group = column < columns, is_active = in_group && n < current.batch;
        const bool was_active = in_group && n < previous.batch;
        const int64_t state_index = int64_t{n} * hidden + unit;
        float dh = 0, past = carried[r];
#pragma unroll
        for (int from = 0; from < kWideCluster; ++from) {
          dh += own_partial[(from * COLUMNS + column) * kWideUnits + lane % 16];
        }
        if (!was_active) {
          dh = is_active && exists && dir.dhy != nullptr ? load_float<T>(dir.dhy, state_index) : 0;
          past = 0;
          if (MODE == PRNN_LSTM && is_active && exists && dir.dcy != nullptr) {
            past = load_float<T>(dir.dcy, state_index);
          }
        } else if (!is_active && exists) {  // what is left belongs to the initial state
          if (dir.dhx != nullptr) store_float<T>(dir.dhx, state_index, MODE == PRNN_GRU ? dh + past : dh);
          if (MODE == PRNN_LSTM && dir.dcx != nullptr) store_float<T>(dir.dcx, state_index, past);
        }
        dh += Element<T>::to_float(dy[r]);
        const bool has_initial = (MODE == PRNN_LSTM ? dir.cx : dir.hx) != nullptr;
        const float state_before = n < next.batch || has_initial ? Element<T>::to_float(before[r]) : 0;
        if constexpr (MODE == PRNN_LSTM) {
          const float i = Element<T>::to_float(gates[r].value[0]), f = Element<T>::to_float(gates[r].value[1]);
          const float g = Element<T>::to_float(gates[r].value[2]), o = Element<T>::to_float(gates[r].value[3]);
          const float squashed = hyperbolic_tangent<false>(Element<T>::to_float(cell[r]));
          const float dc = past + dh * o * (1 - squashed * squashed);
          da[r][0] = dc * g * i * (1 - i);
          da[r][1] = dc * state_before * f * (1 - f);
          da[r][2] = dc * i * (1 - g * g);
          da[r][3] = dh * squashed * o * (1 - o);
          carried[r] = dc * f;
        } else {
          const float reset = Element<T>::to_float(gates[r].value[0]), z = Element<T>::to_float(gates[r].value[1]);
          const float fresh = Element<T>::to_float(gates[r].value[2]);
          const float recurrent = Element<T>::to_float(gates[r].value[3]);
          dh += past;
          const float dcandidate = dh * (1 - z) * (1 - fresh * fresh);
          da[r][0] = dcandidate * recurrent * reset * (1 - reset);
          da[r][1] = dh * (state_before - fresh) * z * (1 - z);
          da[r][2] = dcandidate * reset;
          da[r][3] = dcandidate;
          carried[r] = dh * z;
        }
#pragma unroll
        for (int g = 0; g < 4; ++g) da[r][g] = is_active && exists ? da[r][g] : 0;
      }
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int column = own_column + r * 16, n = group_column + column;
        const bool publishes = column < columns && n < current.batch && lane % 2 == 0 && unit < padded;
        T* const out = dgates + int64_t{current.row + n} * row_elements + unit;
#pragma unroll
        for (int g = 0; g < kGates; ++g) {
          const float beside = __shfl_down_sync(kWholeWarp, da[r][g], 1);
          publish_word(publishes, out + g * padded, Element<T>::pack(da[r][g], beside));
        }
      }
      published = clock64();
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int column = own_column + r * 16, n = group_column + column;
        if (MODE == PRNN_GRU && exists && column < columns && n < current.batch) {
          store_float<T>(dir.dcandidate, int64_t{current.row + n} * hidden + unit, da[r][3]);
        }
#pragma unroll
        for (int g = 0; g < 4; ++g) bias_sum[g] += da[r][g];
      }
    } else {
      published = clock64();
    }
    __syncthreads();  // the sums have been read: the ring is free
  }

  // The sums for the biases, over the sequences of this group. A GRU's 2 and 3 are its candidate's bR and bW.
  float* const all = reinterpret_cast<float*>(ring);
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    const float both = bias_sum[g] + __shfl_xor_sync(kWholeWarp, bias_sum[g], 16);
    if (lane < 16) all[(warp * 4 + g) * 16 + lane] = both;
  }
  __syncthreads();
  if (warp < 2) {
    const int g = threadIdx.x / 16;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kResidentWarps; ++w) sum += all[(w * 4 + g) * 16 + lane % 16];
    if (exists) dir.bias_sums[(int64_t{group} * 4 + g) * hidden + unit] = sum;
  }
  // No block leaves while others may still write to its shared memory.
  sync_cluster();
}

template <class T, prnnRNNMode_t MODE>
cudaError_t launch_wide_backward(const ResidentShape& shape, const BackwardParams& params, cudaStream_t stream) {
  switch (shape.wide_columns) {
    case 8: return launch_resident(wide_backward<T, MODE, 8>, shape, params, stream);
    case 16: return launch_resident(wide_backward<T, MODE, 16>, shape, params, stream);
    case 32: return launch_resident(wide_backward<T, MODE, 32>, shape, params, stream);
    case 64: return launch_resident(wide_backward<T, MODE, 64>, shape, params, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace prnn
