// The kernels of Engine::kNormGrid: all timesteps in one launch, R in the registers and shared memory of blocks
// that exchange through L2.
#pragma once

#include "rnn/cuda/layer_norm/params.h"
#include "rnn/plan/layer_norm.h"

namespace prnn {

// `sizes`: of the launch. Its replicas have a copy of R each and a share of the sequences.
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

struct Tf32;

// The forward or the backward kernel. T: as launch_layer_norm_lstm_cluster().
template <class T>
cudaError_t launch_layer_norm_lstm_grid(const LayerNormLstmGrid&, bool is_backward, const LayerNormLstmGridParams&,
                                        cudaStream_t);

}  // namespace prnn
