#include "rnn/plan/simt.h"

#include "rnn/plan/cluster.h"
#include "rnn/plan/mma.h"
#include "rnn/plan/plan.h"

namespace prnn {
namespace {

// From a block's barrier to its first look.
int poll_delay(const GpuRow& row, const RnnProblem& problem, Pass pass, const SimtKernel& kernel) {
  const auto& delays = row.delays->simt;
  const bool backward = pass == Pass::kBackward;
  if (problem.gates() > 1) return backward ? delays.backward_gated : delays.forward_gated;
  return kernel.columns > 1 ? delays.several_sequences : backward ? delays.backward : delays.forward;
}

bool simt_shape_for(const GpuRow& row, const RnnProblem& problem, KernelId id, const SimtKernel& kernel,
                    int recurrences, ResidentShape* shape) {
  const bool is_cluster = kernel.cluster > 1, backward = id->pass == Pass::kBackward;
  const int64_t padded = padded_hidden(problem);
  const int64_t units = is_cluster ? int64_t{kernel.cluster} * kernel.units : padded;
  const int64_t vectors = backward ? problem.gates() : 1;  // of so many units; they are K
  const SimtSplit split = simt_split(static_cast<int>(problem.gates()), backward, kernel);
  if (units < padded || units * vectors > split.elements) return false;
  *shape = split_units(units, kernel.units, kernel.cluster, ceil_div(problem.max_batch(), kernel.columns));
  shape->kernel = id;
  shape->tiles = 1;
  const int64_t load_bytes = int64_t{16} * kResidentThreads * split.rows;  // of the weights of all lanes' loads
  const int in_registers = simt_register_loads(split.rows, kernel.loads);
  shape->shared_bytes = load_bytes * (kernel.loads - in_registers);
  set_weights(load_bytes * in_registers, shape->shared_bytes, shape);
  constexpr int64_t kStaticBytes = 8192;  // more than the kernels have beside the weights
  if (shape->shared_bytes > 0 && shape->shared_bytes + kStaticBytes > row.shared_bytes) return false;
  shape->poll_delay_cycles = poll_delay(row, problem, id->pass, kernel);
  const int blocks = resident_blocks(row, is_cluster ? 4 : 1), room = blocks / kernel.cluster * kernel.cluster;
  if (kernel.cluster > row.largest_cluster || (kernel.cluster == 16 && blocks < kWholeGpu)) return false;
  return int64_t{shape->blocks} * shape->replicas * recurrences <= room;
}

}  // namespace

bool choose_simt_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, ResidentShape* best) {
  const int64_t sequences = problem.max_batch();
  if (sequences > kSimtSequences) return false;
  const bool gated = problem.gates() > 1, is_one = sequences == 1;
  const bool is_crowded = ceil_div(problem.hidden, 32) * sequences * recurrences > row.multiprocessors;
  // With weights in shared memory the mma kernels are ahead here, where they have room. Measured on an H200:
  // docs/resident_kernels_experiments.md.
  const bool mma_is_faster = gated
                                 ? is_one && (problem.hidden <= 1056 || (problem.gates() == 3 && problem.hidden > 1344))
                                 : pass == Pass::kBackward;
  const auto is_faster = [&](const SimtKernel& kernel) {
    if (kernel.cluster > 1) return true;
    if (kernel.columns > 1) return is_crowded && !problem.tf32;
    // With tf32 the mma kernels multiply once instead of three times: they are ahead where sequences go together, and
    // as fast for one small layer without gates.
    if (problem.tf32) return is_one && kernel.loads <= 8 && (gated || problem.hidden > 640);
    ResidentShape other;
    return kernel.loads <= 8 || !mma_is_faster || !choose_mma_shape(row, problem, pass, recurrences, &other);
  };
  return any_kernel(row, problem, Engine::kSimt, pass, [&](KernelId id) {
    const SimtKernel kernel{id.shape(0), id.shape(1), id.shape(2), id.shape(3)};
    return is_faster(kernel) && simt_shape_for(row, problem, id, kernel, recurrences, best);
  });
}

}  // namespace prnn
