// Which layers of a stack run together, as a wavefront: several layers in one launch, each in blocks of its own, the
// weights of all of them on the chip. Plain C++ that needs no GPU, as plan.h. docs/resident_kernels.md, section Stacks.
#pragma once

#include "rnn/plan/plan.h"

namespace prnn {

constexpr int kWavefrontLayers = 8;  // at most, in one launch
constexpr int kWavefrontWave = 2;    // tiles with one barrier for all, where a replica has more than one

// Fragments of weights (16 rows, half a k-tile) that a warp keeps in registers, beside the states of its k-tiles.
constexpr int wavefront_register_fragments(int k_tiles) { return k_tiles > 4 ? 28 : 32; }

// A kernel that exists: units of a block in eights, blocks that split K, k-tiles of a warp in each of the two parts
// of K (a layer's own state, and its neighbour's).
struct WavefrontKernel {
  int unit_tiles, cluster, k_tiles;
};

template <prnnRNNMode_t MODE>
struct WavefrontKernels {  // RNN
  static constexpr WavefrontKernel forward[] = {{4, 1, 1}, {4, 1, 2}, {4, 1, 4}};
  static constexpr WavefrontKernel backward[] = {{4, 1, 1}, {4, 1, 2}, {4, 1, 4}};
};
template <>
struct WavefrontKernels<PRNN_LSTM> {
  static constexpr WavefrontKernel forward[] = {{1, 1, 1}, {1, 1, 2}, {2, 1, 1}, {2, 1, 2}, {3, 1, 2}, {2, 1, 4}};
  static constexpr WavefrontKernel backward[] = {{2, 4, 1}, {2, 4, 2}, {3, 4, 2}, {2, 2, 8}};
};
template <>
struct WavefrontKernels<PRNN_GRU> {
  static constexpr WavefrontKernel forward[] = {{2, 1, 1}, {2, 1, 2}, {4, 1, 2}, {2, 1, 4}};
  static constexpr WavefrontKernel backward[] = {{2, 3, 1}, {2, 3, 2}, {4, 3, 2}};
};

// Whether a replica has no more than one tile where this kernel runs: the weights of large gated layers, more than 2
// k-tiles, leave no room for more.
constexpr bool has_one_tile(prnnRNNMode_t mode, const WavefrontKernel& kernel) {
  return (mode == PRNN_LSTM || mode == PRNN_GRU) && kernel.k_tiles > 2;
}

// Of each pass of a stack: how many layers a launch takes, and their layout. Where fewer layers than that are left, the
// launch has fewer blocks; one layer alone runs as a stack of one does.
struct WavefrontPlan {
  int forward_layers = 1, backward_layers = 1;  // 1: no wavefront
  ResidentShape forward, backward;              // `blocks` and `replicas` are each layer's; `k-tiles` of one part
};

// Whether there are kernels for such a stack at all, on a GPU large enough: one direction, a uniform batch of not too
// many sequences, 16 bits, H a multiple of 32, no projection.
bool may_run_together(const RnnProblem& problem);

WavefrontPlan plan_wavefront(const GpuRow& row, const RnnProblem& problem);

}  // namespace prnn
