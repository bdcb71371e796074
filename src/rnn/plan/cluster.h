// The cluster engine's part of the plans: which layers one thread-block cluster holds, and how. Plain C++ that needs no
// GPU, as plan.h. docs/resident_kernels.md, section cluster.
#pragma once

#include "rnn/plan/shape.h"

namespace prnn {

// Blocks in clusters of 4 of a whole GPU: a part of one (MIG) may have no 16 SMs that can be a cluster.
constexpr int kWholeGpu = 96;

// The largest layer that a cluster holds: in tf32; in 16 bits, without gates forward alone.
constexpr int64_t kClusterHiddenTf32 = 256;
constexpr int64_t cluster_hidden(bool gated) { return gated ? 512 : 1024; }

// How the blocks of a cluster split rows and K.
struct ClusterForwardSplit {
  int units;          // of a block
  int unit_tiles;     // of a warp, so that their rows fill tiles of 16
  int parts;          // of the rows
  int shares;         // of K; a warp multiplies one part with one share
  int warps;          // enough for a thread for every unit of every sequence of a tile
  int column_floats;  // of the sums of one sequence: 4 off whole lines, against bank conflicts
  int64_t shared_bytes;
};

// `k_tile`: elements of one.
constexpr ClusterForwardSplit cluster_forward_split(int gates, int k_tiles, int cluster, int k_tile) {
  ClusterForwardSplit split{};
  const int units = k_tiles * k_tile;  // of the layer
  split.units = units / cluster;
  split.unit_tiles = gates == 4 ? 1 : 2;
  split.parts = split.units / (kTileRows * split.unit_tiles);
  const int most = split.parts * units / 32, multiplying = most < 8 ? most : 8, finishing = split.units / 4;
  split.warps = finishing > multiplying ? finishing : multiplying;
  split.shares = split.warps / split.parts;
  split.column_floats = split.units * (gates > 1 ? 4 : 1) + 4;
  split.shared_bytes =
      2 * (int64_t{512} * k_tiles + int64_t{4} * split.shares * kTileColumns * split.column_floats + 8);
  return split;
}

// Backward, a block multiplies its own gates' gradients with its columns of R' and sends each block its units' part of
// the sums: rows are all units, K the block's gates, one after the other.
struct ClusterBackwardSplit {
  int units;  // of a block
  int warps;
  int tiles;    // of 16 rows, of a warp
  int k_tiles;  // of K, the last one perhaps not full
  int bundle;   // units of one block that a warp has the sums of: 16 or 32
  int64_t shared_bytes;
};

constexpr ClusterBackwardSplit cluster_backward_split(int gates, int k_tiles, int cluster, int k_tile) {
  ClusterBackwardSplit split{};
  const int units = k_tiles * k_tile;  // of the layer
  split.units = units / cluster;
  split.bundle = split.units < 32 ? split.units : 32;
  const int bundles = units / split.bundle, finishing = split.units / 4;
  split.warps = finishing > 8 ? finishing : bundles < 8 ? bundles : 8;
  split.tiles = units / 16 / split.warps;
  split.k_tiles = (gates * split.units + k_tile - 1) / k_tile;
  const int64_t sums = int64_t{4} * cluster * kTileColumns * split.units;
  const int64_t biases = int64_t{4} * (gates > 1 ? 4 : 1) * kTileColumns * split.units;
  split.shared_bytes = 2 * (sums + int64_t{512} * split.k_tiles + 8) + biases;
  return split;
}

// Sets `shape` to the layout of the kernel that was measured to be the fastest; false where other engines are.
bool choose_cluster_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences,
                          ResidentShape* best);

}  // namespace prnn
