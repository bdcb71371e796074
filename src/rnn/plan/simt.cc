#include "rnn/plan/simt.h"

#include "rnn/plan/cluster.h"

namespace prnn {
namespace {

constexpr int64_t kMostSequences = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// From a block's barrier to its first look. Measured on an H200.
int poll_delay_cycles(const RnnProblem& problem, bool backward, const SimtKernel& kernel) {
  if (problem.gates() > 1) return backward ? 1100 : 750;
  return kernel.columns > 1 ? 800 : backward ? 750 : 600;
}

bool simt_shape_for(const GpuRow& row, const RnnProblem& problem, bool backward, const SimtKernel& kernel,
                    int directions, ResidentShape* shape) {
  const bool is_cluster = kernel.cluster > 1;
  const int64_t padded = ceil_div(problem.hidden, k_tile_elements(true)) * k_tile_elements(true);
  const int64_t units = is_cluster ? int64_t{kernel.cluster} * kernel.units : padded;
  const int64_t vectors = backward ? problem.gates() : 1;  // of so many units; they are K
  const SimtSplit split = simt_split(static_cast<int>(problem.gates()), backward, kernel);
  if (units < padded || units * vectors > split.elements) return false;
  *shape = ResidentShape();
  shape->unit_tiles = kernel.units / kTileRows;
  shape->cluster = kernel.cluster;
  shape->replicas = static_cast<int>(ceil_div(problem.max_batch(), kernel.columns));
  shape->blocks = static_cast<int>(ceil_div(units, kernel.units));
  shape->row_tiles = static_cast<int>(shape->unit_tiles * (backward ? 1 : problem.gates()));
  shape->k_tiles = static_cast<int>(ceil_div(units * vectors, int64_t{k_tile_elements(true)} * kResidentWarps));
  shape->tiles = 1;
  shape->register_bytes = int64_t{16} * kResidentThreads * kernel.loads * split.rows * shape->blocks;
  shape->poll_delay_cycles = poll_delay_cycles(problem, backward, kernel);
  const int blocks = resident_blocks(row, is_cluster ? 4 : 1), room = blocks / kernel.cluster * kernel.cluster;
  if (kernel.cluster == 16 && blocks < kWholeGpu) return false;
  return int64_t{shape->blocks} * shape->replicas * directions <= room;
}

}  // namespace

bool choose_simt_shape(const GpuRow& row, const RnnProblem& problem, bool backward, int directions,
                       ResidentShape* best) {
  const int64_t sequences = problem.max_batch();
  if (problem.type != PRNN_DATA_FLOAT || problem.tf32 || sequences > kMostSequences) return false;
  // The other kernels are as fast where they do with few blocks, of 32 units each: for one small layer without gates,
  // and where every one of some sequences has a replica.
  const bool is_large = problem.gates() > 1 || problem.hidden > 640;
  const bool is_crowded = ceil_div(problem.hidden, 32) * sequences * directions > row.multiprocessors;
  const auto choose = [&](const auto& kernels) {
    int number = 0;
    for (const SimtKernel& kernel : kernels) {
      ++number;
      const bool suits = kernel.cluster > 1   ? row.arch == 90
                         : kernel.columns > 1 ? is_crowded
                                              : sequences == 1 && is_large;
      if (!suits || !simt_shape_for(row, problem, backward, kernel, directions, best)) continue;
      best->simt_kernel = number;
      return true;
    }
    return false;
  };
  return problem.gates() > 1 ? choose(kSimtGated) : choose(kSimtWithoutGates);
}

}  // namespace prnn
