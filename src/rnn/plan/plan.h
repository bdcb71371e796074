// The plan of a call on a GPU: how a recurrent layer's weights are split over thread blocks, warps, registers and
// shared memory. Plain C++ that needs no GPU: a plan is computed from a row of the GPU table and a problem.
// docs/resident_kernels.md explains the terms.
//
// Rows and K. A step of the forward pass multiplies the G H x H recurrent weights with the H x N state, a step of the
// backward pass their transpose, H x G H, with the G H x N gradients of the gates. "Rows" are the outputs, "K" is the
// dimension that is summed over. A replica of the weights is a set of blocks that holds them once and serves a share of
// the batch. In it, a cluster of blocks owns a set of hidden units; each of its blocks holds the rows of all of them
// for its own share of K, and the partial sums meet in distributed shared memory. The warps of a block split the
// block's K again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/gpu_table.h"
#include "rnn/plan/engines.h"
#include "rnn/plan/shape.h"
#include "rnn/problem.h"

namespace prnn {

int64_t type_bytes(prnnDataType_t type);
int64_t padded_hidden(const RnnProblem& problem);  // H rounded up to whole k-tiles

// A value for each pass.
template <class T>
struct PerPass {
  T forward{}, backward{};
  T& operator[](Pass pass) { return pass == Pass::kForward ? forward : backward; }
  const T& operator[](Pass pass) const { return pass == Pass::kForward ? forward : backward; }
};

// Layers of a stack that run together in a pass: how many a launch takes at most (layers_of_launch()), and their
// layout. Where fewer layers than that are left, the launch has fewer blocks; one layer alone runs as a stack of one
// does.
struct LayersTogether {
  Schedule schedule = Schedule::kOneByOne;  // kSideBySide, which comes before kWavefront; else each layer runs alone
  int layers = 1;
  ResidentShape shape;  // `blocks` and `replicas` are each layer's
  std::string reason;   // one sentence where each of several layers runs alone

  bool exist() const { return layers > 1; }
  bool are(Schedule wanted) const { return schedule == wanted; }
};
struct WavefrontPlan : PerPass<LayersTogether> {};  // wavefront.h

// From here on the backends' ratio depends on the number of timesteps no more.
constexpr int64_t kManySteps = 32;

// Whether cuDNN is faster than the resident kernels of a plan, in a training step (the same for all of its calls) and
// in inference, and one sentence where it is in either. See faster.h.
struct CudnnVerdict {
  bool training = false, inference = false;
  std::string sentence;
};

// One call's plan. Every call on the problem computes the same one, and everything that depends on it is in here.
struct RnnPlan {
  bool runnable = false;         // the row's GPU has room for the layer, and this library has the kernels
  bool resident = true;          // its weights stay on the chip; all others' but kNormSteps'
  std::string reason;            // one sentence when not runnable
  int64_t largest_hidden = 0;    // the largest H with the same mode, type, N and directions that fits
  PerPass<ResidentShape> shape;  // of a layer alone; without a kernel a pass runs kNormSteps
  int recurrences_at_once = 1;   // heads and directions of a layer that run in one launch
  PerPass<LayersTogether> together;
  CudnnVerdict cudnn;  // of the backends, where both serve the layer

  // Returns the engine that runs a layer alone; the plan is runnable.
  Engine engine(Pass pass) const {
    return shape[pass].kernel.exists() ? shape[pass].kernel->engine : Engine::kNormSteps;
  }

  // Both passes of an LSTM with a projection multiply with its two recurrent matrices one after the other; else with
  // their product.
  bool keeps_projection_apart() const { return shape.forward.kernel.is(Engine::kProjected); }
};

RnnPlan plan_rnn(const GpuRow& row, const RnnProblem& problem);

// The choice of the backend that serves a call: the one place that decides it, for calls, queries and the library that
// stands in for cuDNN.
struct BackendChoice {
  bool resident = false;        // the resident kernels may serve the call
  bool cudnn = false;           // cuDNN may, where there is one
  bool resident_first = false;  // else cuDNN comes first
  std::string reason;           // one sentence unless the resident kernels come first
};

// For a problem and its plan, whose reason says so where the GPU has no row.
BackendChoice choose_backend(const RnnProblem& problem, const RnnPlan& plan, prnnRNNBackend_t wanted);

// Whether a pass forward has multicast kernels (wgmma.cc), by its sizes.
bool runs_multicast(const GpuRow& row, const RnnProblem& problem);

// Why the plan's engines are not the ones that would be faster for other layers; "" where there is none.
std::string why_not_faster(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan);

// Blocks that the row keeps resident at once in clusters of this size.
int resident_blocks(const GpuRow& row, int cluster);

// The mma engine for a pass, whose kernels know resets and masks only where there are any.
inline Engine mma_engine(const RnnProblem& problem, Pass pass) {
  return first_serving({Engine::kMma, Engine::kMmaExtras}, pass, problem.needs());
}

// Calls consider(KernelId) for each kernel of an engine that exists for the problem and the row's GPU, in the table's
// order, until it returns true; returns whether it did.
template <class Consider>
bool any_kernel(const GpuRow& row, const RnnProblem& problem, Engine engine, Pass pass, const Consider& consider) {
  const bool tf32 = problem.tf32 && engine != Engine::kSimt;  // simt is exact, which tf32 permits
  const int cell = cell_number(problem.mode), type = type_number(problem.type, tf32);
  if (type < 0 || !serves(engine, pass, problem.needs())) return false;
  for (int i = 0; i < kKernelCount; ++i) {
    const Kernel& kernel = kKernels[i];
    if (kernel.engine != engine || kernel.pass != pass || (kernel.cells >> cell & 1) == 0 ||
        (kernel.types >> type & 1) == 0 || !row.has(kernel.feature)) {
      continue;
    }
    const KernelId id{static_cast<int16_t>(i), static_cast<int8_t>(cell), static_cast<int8_t>(type)};
    if (consider(id)) return true;
  }
  return false;
}

// A layout of `hidden` units over blocks of `units`, whole clusters of them; what else it has is still to be set.
inline ResidentShape split_units(int64_t hidden, int64_t units, int cluster, int64_t replicas) {
  ResidentShape shape;
  shape.units = static_cast<int>(units);
  shape.cluster = cluster;
  shape.replicas = static_cast<int>(replicas);
  shape.blocks = static_cast<int>(ceil_div(hidden, units * cluster) * cluster);
  return shape;
}

// Sets the bytes of weights, given those of a block.
inline void set_weights(int64_t in_registers, int64_t in_shared, ResidentShape* shape) {
  shape->register_bytes = in_registers * shape->blocks;
  shape->shared_weight_bytes = in_shared * shape->blocks;
}

// Replaces `best` by layouts that rank lower: of those that shape_for(replicas, &shape) makes for 1, 2, ... replicas,
// as long as it does and blocks of so many recurrences stay resident.
template <class ShapeFor, class RankOf>
void keep_best_replicas(const GpuRow& row, const RnnProblem& problem, int recurrences, const ShapeFor& shape_for,
                        const RankOf& rank_of, ResidentShape* best) {
  for (int replicas = 1; replicas <= std::min<int64_t>(problem.max_batch(), 64); ++replicas) {
    ResidentShape shape;
    if (!shape_for(replicas, &shape)) break;
    if (shape.blocks * replicas * recurrences > resident_blocks(row, shape.cluster)) break;
    if (!best->kernel.exists() || rank_of(shape) < rank_of(*best)) *best = shape;
  }
}

}  // namespace prnn
