// How one resident kernel is laid out over thread blocks, warps, registers and shared memory: what plans and kernels
// share. Kernels are compiled with this header and those of their engines alone, so that a change of the planner does
// not compile them again.
#pragma once

#include <cstdint>

#include "rnn/plan/kernels.h"

namespace prnn {

struct RnnProblem;  // rnn/problem.h

constexpr int kResidentThreads = 256;
constexpr int kResidentWarps = kResidentThreads / 32;
constexpr int kTileColumns = 8;     // sequences in one tile of the matrix instruction
constexpr int kTileRows = 8;        // rows of a row tile: half a tile of the matrix instruction
constexpr int kMaxTiles = 16;       // tiles that a replica serves in one pass
constexpr int kMaxRecurrences = 8;  // heads and directions of one launch

// Elements along K that a thread quad covers with one 16-byte load each: a k-tile, of two matrix instructions.
constexpr int k_tile_elements(bool is_float32) { return is_float32 ? 16 : 32; }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How one resident kernel is laid out for a problem.
struct ResidentShape {
  KernelId kernel;
  int units = 0;                    // hidden units that a block finishes
  int cluster = 1;                  // blocks that share rows and split K; of the cluster engine, a replica's
  int replicas = 0;                 // copies of the weights, for each direction
  int blocks = 0;                   // blocks of one replica
  int tiles = 0;                    // tiles of 8 sequences that a replica serves in one pass
  int fewer_columns = 0;            // sequences that it serves, if fewer than its tiles have; else 0
  int poll_delay_cycles = 0;        // from a block's own store to its first look at the others' data
  int64_t register_bytes = 0;       // recurrent weights in registers, whole replica
  int64_t shared_weight_bytes = 0;  // recurrent weights in shared memory, whole replica
  int64_t shared_bytes = 0;         // dynamic shared memory of a block

  int64_t columns() const { return fewer_columns > 0 ? fewer_columns : int64_t{tiles} * kTileColumns; }
  int64_t batch_per_pass() const { return replicas * columns(); }
  // States are sent from block to block of a cluster, and no exchange buffer is wanted.
  bool exchanges_in_cluster() const { return kernel.is(Engine::kCluster) || (kernel.is(Engine::kSimt) && cluster > 1); }
  // The exchange buffer has the rows of y, else fragments (ForwardDirection::exchange).
  bool exchanges_rows() const { return kernel.is(Engine::kWgmma) || kernel.is(Engine::kWgmmaSplitK); }
};

// Sequences [first, first + columns) of a problem that one launch serves, a share of them each replica.
struct ReplicaShares {
  ReplicaShares(const ResidentShape& shape, int64_t columns)
      : columns_per_replica(ceil_div(columns, shape.replicas)), replicas(ceil_div(columns, columns_per_replica)) {}
  int64_t columns_per_replica, replicas;
};

}  // namespace prnn
