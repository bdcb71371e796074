// What runs on a GPU: how a recurrent layer's weights are split over thread blocks, warps, registers and shared memory.
// Plain C++ that needs no GPU: a plan is computed from a row of the GPU table and a problem. docs/resident_kernels.md
// explains the terms.
//
// Rows and K. A step of the forward pass multiplies the G H x H recurrent weights with the H x N state, a step of the
// backward pass their transpose, H x G H, with the G H x N gradients of the gates. "Rows" are the outputs, "K" is the
// dimension that is summed over. A replica of the weights is a set of blocks that holds them once and serves a share of
// the batch. In it, a cluster of blocks owns a set of hidden units; each of its blocks holds the rows of all of them
// for its own share of K, and the partial sums meet in distributed shared memory. The warps of a block split the
// block's K again.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/gpu_table.h"
#include "rnn/plan/kernels.h"
#include "rnn/problem.h"

namespace prnn {

constexpr int kResidentThreads = 256;
constexpr int kResidentWarps = kResidentThreads / 32;
constexpr int kTileColumns = 8;     // sequences in one tile of the matrix instruction
constexpr int kTileRows = 8;        // rows of a row tile: half a tile of the matrix instruction
constexpr int kMaxTiles = 16;       // tiles that a replica serves in one pass
constexpr int kMaxRecurrences = 8;  // heads and directions of one launch

// Elements along K that a thread quad covers with one 16-byte load each: a k-tile, of two matrix instructions.
constexpr int k_tile_elements(bool is_float32) { return is_float32 ? 16 : 32; }

int64_t type_bytes(prnnDataType_t type);
int64_t padded_hidden(const RnnProblem& problem);  // H rounded up to whole k-tiles

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How one resident kernel is laid out for a problem.
struct ResidentShape {
  KernelId kernel;
  int units = 0;                    // hidden units that a block finishes
  int cluster = 1;                  // blocks that share rows and split K; of the cluster engine, a replica's
  int replicas = 0;                 // copies of the weights, for each direction
  int blocks = 0;                   // blocks of one replica
  int tiles = 0;                    // tiles of 8 sequences that a replica serves in one pass
  int poll_delay_cycles = 0;        // from a block's own store to its first look at the others' data
  int64_t register_bytes = 0;       // recurrent weights in registers, whole replica
  int64_t shared_weight_bytes = 0;  // recurrent weights in shared memory, whole replica
  int64_t shared_bytes = 0;         // dynamic shared memory of a block

  int64_t columns() const { return int64_t{tiles} * kTileColumns; }
  int64_t batch_per_pass() const { return replicas * columns(); }
  // States are sent from block to block of a cluster, and no exchange buffer is wanted.
  bool exchanges_in_cluster() const { return kernel.is(Engine::kCluster) || (kernel.is(Engine::kSimt) && cluster > 1); }
  // The exchange buffer has the rows of y, else fragments (ForwardDirection::exchange).
  bool exchanges_rows() const { return kernel.is(Engine::kWgmma) || kernel.is(Engine::kWgmmaSplitK); }
};

// Of each pass of a stack: how many layers a launch takes at most (layers_of_launch()), and their layout. Where fewer
// layers than that are left, the launch has fewer blocks; one layer alone runs as a stack of one does.
struct WavefrontPlan {
  int forward_layers = 1, backward_layers = 1;  // 1: no wavefront
  ResidentShape forward, backward;              // `blocks` and `replicas` are each layer's
  std::string forward_reason, backward_reason;  // one sentence where there is none, and several layers
};

// Of each pass of a stack: whether two neighbouring layers run side by side; side_by_side.h. Comes before a wavefront.
struct SideBySidePlan {
  bool forward = false, backward = false;
  ResidentShape forward_shape, backward_shape;  // of each of two layers in one launch
  std::string forward_reason, backward_reason;  // as WavefrontPlan's
};

// Timesteps of which the backends were compared. The last stands for many.
constexpr int kMeasuredSteps[] = {1, 2, 4, 8, 16, 32};
constexpr int kMeasuredStepCount = sizeof kMeasuredSteps / sizeof kMeasuredSteps[0];

// cuDNN's time over that of the resident kernels for each of kMeasuredSteps, as far as it was measured: else infinite.
struct CudnnTime {
  std::array<double, kMeasuredStepCount> inference, training;
  const char* measured_on = "";

  CudnnTime() {
    inference.fill(INFINITY);
    training.fill(INFINITY);
  }
};

// One call's plan. Every call on the problem computes the same one, and everything that depends on it is in here.
struct RnnPlan {
  bool runnable = false;  // the row's GPU has room for the layer, and this library has the kernels
  std::string reason;     // one sentence when not runnable
  ResidentShape forward, backward;
  int recurrences_at_once = 1;  // heads and directions of a layer that run in one launch
  WavefrontPlan wavefront;
  int inference_layers = 1;  // WavefrontPlan::forward_layers without dropout, and with an aligned y
  SideBySidePlan side_by_side;
  bool inference_side_by_side = false;  // SideBySidePlan::forward as inference_layers
  CudnnTime cudnn_time;                 // see faster.h

  // Both passes of an LSTM with a projection multiply with its two recurrent matrices one after the other; else with
  // their product.
  bool keeps_projection_apart() const { return forward.kernel.is(Engine::kProjected); }
};

RnnPlan plan_rnn(const GpuRow& row, const RnnProblem& problem);

// The shapes alone; false if the layer does not fit.
bool plan_shapes(const GpuRow& row, const RnnProblem& problem, ResidentShape* forward, ResidentShape* backward);

// The largest H with the same mode, type, N and directions that fits. Takes some twenty plans.
int64_t find_largest_hidden(const GpuRow& row, const RnnProblem& problem);

// Why the plan's engines are not the ones that would be faster for other layers; "" where there is none.
std::string why_not_faster(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan);

// Blocks that the row keeps resident at once in clusters of this size.
int resident_blocks(const GpuRow& row, int cluster);

// Sequences [first, first + columns) of a problem that one launch serves, a share of them each replica.
struct ReplicaShares {
  ReplicaShares(const ResidentShape& shape, int64_t columns)
      : columns_per_replica(ceil_div(columns, shape.replicas)), replicas(ceil_div(columns, columns_per_replica)) {}
  int64_t columns_per_replica, replicas;
};

// Partial sums of the bias gradients that the backward kernels leave, of each layer and direction.
int64_t bias_partials(const RnnProblem& problem, const ResidentShape& backward);

// Whether a pass has something for its kernels in prnnRNNExtras_t or prnnRNNMasks_t, and whether something other than
// resets. Every kernel of a training step saves c.
inline bool needs_more_than_resets(const RnnProblem& problem, Pass pass) {
  return problem.masks_in_kernels() || (pass == Pass::kBackward && problem.extras.dcells != nullptr);
}
inline bool needs_extras(const RnnProblem& problem, Pass pass) {
  return problem.extras.reset != nullptr || needs_more_than_resets(problem, pass);
}

// Whether the kernels that have that carry h, or its gradient, besides c (kCarriesH).
inline bool carries_h(const RnnProblem& problem, Pass pass) {
  return problem.mode == PRNN_LSTM && needs_extras(problem, pass);
}

// Whether an engine's kernels have that.
inline bool has_extras_for(const RnnProblem& problem, Engine engine, Pass pass) {
  return !needs_extras(problem, pass) || takes_extras(engine) ||
         (takes_resets(engine) && !needs_more_than_resets(problem, pass));
}

// The mma kernels for a pass.
inline Engine mma_engine(const RnnProblem& problem, Pass pass) {
  return needs_extras(problem, pass) ? Engine::kMmaExtras : Engine::kMma;
}
inline Engine mma_large_engine(const RnnProblem& problem, Pass pass) {
  return needs_extras(problem, pass) ? Engine::kMmaLargeExtras : Engine::kMmaLarge;
}

// Calls consider(KernelId) for each kernel of an engine that exists for the problem and the row's GPU, in the table's
// order, until it returns true; returns whether it did.
template <class Consider>
bool any_kernel(const GpuRow& row, const RnnProblem& problem, Engine engine, Pass pass, const Consider& consider) {
  const bool tf32 = problem.tf32 && engine != Engine::kSimt;  // simt is exact, which tf32 permits
  const int cell = cell_number(problem.mode), type = type_number(problem.type, tf32);
  if (type < 0 || !has_extras_for(problem, engine, pass)) return false;
  for (int i = 0; i < kKernelCount; ++i) {
    const Kernel& kernel = kKernels[i];
    if (kernel.engine != engine || kernel.pass != pass || (kernel.cells >> cell & 1) == 0 ||
        (kernel.types >> type & 1) == 0 || !row.has(kernel.needs)) {
      continue;
    }
    const KernelId id{static_cast<int16_t>(i), static_cast<int8_t>(cell), static_cast<int8_t>(type)};
    if (consider(id)) return true;
  }
  return false;
}

}  // namespace prnn
