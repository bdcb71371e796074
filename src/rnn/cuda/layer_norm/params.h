// Parameters of the CUDA kernels of an LSTM with layer normalisation. prnnSetRNNNormalization has the formulas.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace prnn {

// h after zoneout; without h - before, whose rounding would change a state that is kept.
template <class Real>
__host__ __device__ Real zone_out(Real zoneout, Real before, Real h) {
  return zoneout * before + (h - zoneout * h);
}

// T: the problem's type, void here. Real: float, of double double. A row is a timestep of a sequence: t N + n.
template <class Real>
struct LayerNormLstmParams {
  struct {
    int hidden, steps, batch;
    int columns_per_replica;   // cluster kernels: sequences of a cluster
    int replicas, directions;  // clusters, and 1: what launch_cluster() multiplies
  } sizes;
  int reverse;
  int products;    // PRNN_NORMALIZE_PRODUCTS
  int normalizes;  // not PRNN_NORMALIZE_NONE, which runs as GATES with LN(v) = v, gains of 1 and biases of 0
  Real epsilon;
  Real zoneout;    // where there is no mask
  int* timed_out;  // host memory: becomes 1 when a block's wait exceeds SpinTimeout

  const void* x;  // {T, N, 4, H}
  const void* h0;
  const void* c0;
  const void* recurrent;
  const void* gate_gain;  // this and the next three: NULL unless `normalizes`
  const void* gate_bias;
  const void* cell_gain;
  const void* cell_bias;
  const void* zoneout_mask;    // {T, N, H} or NULL
  const void* recurrent_mask;  // {N, H} or NULL
  const int* lengths;          // {N} or NULL
  void* y;                     // {T, N, H}
  void* cy;                    // {N, H} or NULL

  // Arrays that forward keeps for backward; NULL: none is kept.
  void* gates;  // {T, N, H, 4}: LN(a)
  void* cells;  // {T, N, H}: LN(c')
  Real* stats;  // {T, N, 4}: 1 / deviation of a, mean of c', 1 / deviation of c', unused

  const void* dy;
  const void* dcy;
  void* dx;    // {T, N, 4, H}
  void* da;    // {T, N, 4, H}: of R (m * h_{t-1}); dx itself unless `products`
  void* dh0;   // {N, H} or NULL
  void* dc0;   // {N, H} or NULL
  Real* sums;  // partial sums, {replicas or N, kLayerNormLstmParameterRows, H}

  // The timestep of step s of the recurrence, and the row of sequence 0 there.
  __host__ __device__ int timestep_of(int s) const { return reverse ? sizes.steps - 1 - s : s; }
  __host__ __device__ int64_t row_of(int s) const { return int64_t{timestep_of(s)} * sizes.batch; }
  // Timesteps of sequence n, and whether step s is its first one, before which it has its initial state.
  __device__ int length_of(int n) const { return lengths != nullptr ? lengths[n] : sizes.steps; }
  __device__ bool is_first(int s, int length) const { return s == 0 || (reverse && timestep_of(s) == length - 1); }
};

// The parameters of Engine::kNormGrid, and of all launches: kernels of clusters take the first part. `sizes`: of the
// launch. Its replicas have a copy of R each and a share of the sequences.
struct LayerNormLstmGridParams : LayerNormLstmParams<float> {
  int padded;                 // H rounded up to whole k-tiles
  int blocks;                 // of a replica
  int first_column, columns;  // sequences [first_column, first_column + columns) are this launch's
  int first_partial;          // of `sums`: replica 0's
  int poll_delay_cycles;      // from a block's own store of states to its first look at the others'
  int moments_delay_cycles;   // the same of sums
  // The arrays that the blocks of a replica exchange, all bytes 0xFF beforehand. C: columns of a replica. Forward: m *
  // h before each step, {replicas, T, tiles} as ForwardDirection::exchange has a tile; {replicas, T, 2, C, blocks}
  // pairs of floats, the moments of a and of c'. Backward: {replicas, T, C, 4, padded}, of da; {replicas, T, C, blocks}
  // times 4 floats.
  void* states;
  float* moments;
  float* kept_sums;  // backward: {T, N, 4}, the sums that do not depend on the incoming gradient
};

}  // namespace prnn
