#include "rnn/plan/step_time.h"

#include <algorithm>

namespace prnn {
namespace {

// Microseconds: of a pass over the weights; of each of its tiles of 8 sequences; and of 100 row tiles times k-tiles
// that a warp multiplies with a tile.
struct PassTime {
  double pass, tile, products;
};

// Fitted to the points of bench/results/rnn_backends_h200.csv with at least 32 timesteps.
PassTime pass_time(const ResidentShape& shape, bool backward, const RnnProblem& problem) {
  const bool is_float = problem.type == PRNN_DATA_FLOAT;
  switch (shape.kernel->engine) {
    case Engine::kCluster:
      if (!is_float) return backward ? PassTime{0.74, 0, 2.0} : PassTime{0.55, 0, 1.3};
      return backward ? PassTime{1.1, 0, 2.3} : PassTime{0.64, 0, 1.5};
    case Engine::kProjected: return backward ? PassTime{2.3, 2.7, 0} : PassTime{1.0, 3.4, 0};
    case Engine::kSimt: return backward ? PassTime{1.2, 0, 2.0} : PassTime{0.55, 0, 3.0};
    case Engine::kWgmma: return backward ? PassTime{1.3, 0.41, 1.6} : PassTime{0.95, 0.2, 1.4};
    case Engine::kWgmmaSplitK: return backward ? PassTime{4.6, 0.05, 8.3} : PassTime{3.8, 0, 1.6};
    case Engine::kWgmmaMulticast:
      if (is_float) return backward ? PassTime{4.6, 0.78, 0} : PassTime{3.2, 0.52, 0};
      return backward ? PassTime{3.6, 0.55, 0.33} : PassTime{2.8, 0.32, 0.25};
    case Engine::kMmaLarge:
      if (!is_float) return backward ? PassTime{8.5, 0, 0} : PassTime{5.0, 0, 0};
      return backward ? PassTime{2, 0, 20} : PassTime{2.7, 0, 5.5};
    default:
      if (!is_float) return backward ? PassTime{0.32, 0.95, 2.0} : PassTime{0.32, 0.64, 2.2};
      if (problem.tf32) return backward ? PassTime{0.22, 1.2, 6.4} : PassTime{0.14, 0.86, 3.6};
      return backward ? PassTime{0.3, 1.5, 9.2} : PassTime{0.14, 1.3, 4.3};
  }
}

// Sequences that are served at the same time. A launch may have more clusters than are resident at once; of small
// layers two share their SMs.
int64_t sequences_at_once(const GpuRow& row, const RnnProblem& problem, const ResidentShape& shape) {
  if (!shape.kernel.is(Engine::kCluster)) return shape.batch_per_pass();
  const int64_t resident = resident_blocks(row, 4) / shape.cluster * (problem.hidden <= 128 ? 2 : 1);
  return std::min<int64_t>(shape.replicas, resident) * shape.columns();
}

double estimate_pass(const GpuRow& row, const RnnProblem& problem, const ResidentShape& shape, bool backward) {
  const Engine engine = shape.kernel->engine;
  const bool is_mma = engine == Engine::kMma || engine == Engine::kMmaExtras;
  const bool shares_rows = backward && (is_mma || engine == Engine::kWgmma);  // of a cluster, whose blocks split K
  const bool splits_k = shares_rows || engine == Engine::kWgmmaSplitK;
  const bool sums_gates = backward && engine != Engine::kWgmmaSplitK && engine != Engine::kSimt;
  const int64_t k_tiles = ceil_div(problem.hidden, k_tile_elements(problem.type == PRNN_DATA_FLOAT)) *
                          (sums_gates ? problem.gates() : 1) / (splits_k ? shape.cluster : 1);
  const int64_t rows = shape.units * (backward ? 1 : problem.gates()) * (shares_rows ? shape.cluster : 1);
  const PassTime time = pass_time(shape, backward, problem);
  const double of_tile =
      time.tile + time.products / 100 * static_cast<double>(ceil_div(k_tiles, kResidentWarps) * rows) / kTileRows;
  const auto tiles = [&](int64_t sequences) {
    return ceil_div(ReplicaShares(shape, sequences).columns_per_replica, kTileColumns);
  };
  const int64_t batch = problem.max_batch(), at_once = sequences_at_once(row, problem, shape);
  const int64_t passes = ceil_div(batch, at_once), rest = batch - (passes - 1) * at_once;
  const int64_t all_tiles = (passes - 1) * tiles(at_once) + tiles(rest);
  return static_cast<double>(passes) * time.pass + static_cast<double>(all_tiles) * of_tile;
}

// Microseconds of the product of the input with its weights, as cuBLAS makes it; training has as much again for each
// gradient.
double estimate_product(const RnnProblem& problem) {
  const double flops_a_microsecond = problem.type != PRNN_DATA_FLOAT ? 600e6 : problem.tf32 ? 300e6 : 45e6;
  const auto weights = static_cast<double>(problem.gates() * problem.hidden * problem.hidden);
  return 2 * weights * static_cast<double>(problem.max_batch()) / flops_a_microsecond;
}

// Microseconds of a call besides its timesteps: of the call, of each launch after a pass's first, and of a megabyte of
// weights that a launch loads.
struct CallTime {
  double call, launch, megabyte;
};

// Fitted to its points with fewer timesteps.
CallTime call_time(Engine engine, bool is_float, bool training) {
  switch (engine) {
    case Engine::kCluster:
      if (is_float) return training ? CallTime{33, 3, 3.6} : CallTime{12.5, 1.6, 6.5};
      return training ? CallTime{23, 3, 3} : CallTime{10, 1, 3.8};
    case Engine::kSimt: return training ? CallTime{22, 3, 0.6} : CallTime{10, 3, 0.55};
    default: return training ? CallTime{30, 7, 0.4} : CallTime{13.5, 5, 0.9};
  }
}

// The weights' gradients are read and written whatever the number of rows. Where the weights fit a cluster or few
// sequences have simt kernels, CallTime has that.
constexpr double kGradientMegabyte = 2;

// Weights that are copied to whole k-tiles take longer in training.
double estimate_call(const GpuRow& row, const RnnProblem& problem, const PerPass<ResidentShape>& shape, bool training) {
  const bool is_float = problem.type == PRNN_DATA_FLOAT;
  const bool copies = training && problem.gates() > 1 && padded_hidden(problem) != problem.hidden;
  const Engine engine = (training ? shape.backward : shape.forward).kernel->engine;
  const CallTime time = call_time(engine, is_float, training);
  const auto passes = [&](const ResidentShape& of) {
    return static_cast<double>(ceil_div(problem.max_batch(), sequences_at_once(row, problem, of)));
  };
  const double launches = passes(shape.forward) + (training ? passes(shape.backward) : 0);
  const bool has_gradients = training && engine != Engine::kCluster && engine != Engine::kSimt;
  const auto weights = static_cast<double>(problem.gates() * problem.hidden * problem.hidden * (is_float ? 4 : 2));
  return time.call + time.launch * (launches - (training ? 2 : 1)) + (copies ? (is_float ? 20 : 15) : 0) +
         (time.megabyte * launches + (has_gradients ? kGradientMegabyte : 0)) * weights / 1e6;
}

}  // namespace

StepEstimate estimate_step(const GpuRow& row, const RnnProblem& problem, bool training) {
  PerPass<ResidentShape> shape;
  if (!plan_shapes(row, problem, &shape)) return {};
  const double time = estimate_pass(row, problem, shape.forward, false) +
                      (training ? estimate_pass(row, problem, shape.backward, true) : 0) +
                      (training ? 3 : 1) * estimate_product(problem);
  return {time, estimate_call(row, problem, shape, training),
          shape.forward.kernel.is(Engine::kMmaLarge) || shape.backward.kernel.is(Engine::kMmaLarge)};
}

}  // namespace prnn
