#include <algorithm>
#include <cmath>
#include <cstdio>

#include "rnn/plan/cluster.h"
#include "rnn/plan/faster.h"
#include "rnn/plan/layer_norm.h"
#include "rnn/plan/mma.h"
#include "rnn/plan/projected.h"
#include "rnn/plan/side_by_side.h"
#include "rnn/plan/simt.h"
#include "rnn/plan/wavefront.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

const char* mode_name(prnnRNNMode_t mode) {
  switch (mode) {
    case PRNN_LSTM: return "LSTM";
    case PRNN_GRU: return "GRU";
    case PRNN_SLSTM:
    case PRNN_SLSTM_EXP: return "sLSTM";
    default: return "RNN";
  }
}

std::string format(const char* text, long long a = 0, long long b = 0, const char* c = "") {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, text, a, b, c);
  return buffer;
}

// The shape of a plan that somebody else chose; false if it has no kernel or does not fit.
bool take_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, const prnnRNNPlan_t& plan,
                ResidentShape* shape) {
  if (plan.replicas > problem.max_batch()) return false;
  bool fits = false;
  switch (plan.engine) {
    case PRNN_ENGINE_MMA:
      fits = any_kernel(row, problem, mma_engine(problem, pass), pass, [&](KernelId kernel) {
        const int cluster = pass == Pass::kBackward ? kernel.shape(1) : 1;
        return kernel.shape(0) * kTileRows == plan.unitsPerBlock && cluster == plan.clusterBlocks &&
               mma_shape_for(row, problem, kernel, plan.replicas, shape);
      });
      break;
    case PRNN_ENGINE_WGMMA: fits = wgmma_shape_for(row, problem, pass, plan.replicas, shape); break;
    case PRNN_ENGINE_WGMMA_SPLIT_K: fits = split_k_shape_for(row, problem, pass, plan.replicas, shape); break;
    case PRNN_ENGINE_WGMMA_MULTICAST: fits = multicast_shape_for(row, problem, pass, plan.replicas, shape); break;
    case PRNN_ENGINE_BEST: break;
  }
  if (!fits) return false;
  shape->poll_delay_cycles = plan.pollDelayCycles;
  return int64_t{shape->blocks} * plan.replicas * recurrences <= resident_blocks(row, shape->cluster);
}

bool choose_shape(const GpuRow& row, const RnnProblem& problem, Pass pass, int recurrences, bool may_be_large,
                  ResidentShape* best) {
  const prnnRNNPlan_t& asked = pass == Pass::kBackward ? problem.backward_plan : problem.forward_plan;
  if (asked.engine != PRNN_ENGINE_BEST) return take_shape(row, problem, pass, recurrences, asked, best);
  return choose_cluster_shape(row, problem, pass, recurrences, best) ||
         choose_simt_shape(row, problem, pass, recurrences, best) ||
         choose_wgmma_shape(row, problem, pass, recurrences, best) ||
         choose_mma_shape(row, problem, pass, recurrences, best) ||
         (may_be_large && choose_mma_large_shape(row, problem, pass, recurrences, best));
}

// With as few launches as there is room for; with more for heads that clusters hold, whose launches take about half the
// time of other engines'.
bool choose_both(const GpuRow& row, const RnnProblem& problem, bool may_be_large, RnnPlan* plan) {
  const int64_t all = problem.recurrences();
  int64_t most = all, tried = 0;
  bool found = false;
  for (int64_t launches = ceil_div(all, kMaxRecurrences); launches <= most; ++launches) {
    const int at_once = static_cast<int>(ceil_div(all, launches));
    if (at_once == tried) continue;
    tried = at_once;
    PerPass<ResidentShape> shape;
    if (!choose_shape(row, problem, Pass::kForward, at_once, may_be_large, &shape.forward) ||
        !choose_shape(row, problem, Pass::kBackward, at_once, may_be_large, &shape.backward)) {
      continue;
    }
    const bool is_cluster = shape.forward.kernel.is(Engine::kCluster) && shape.backward.kernel.is(Engine::kCluster);
    if (!found || is_cluster) {
      plan->shape = shape;
      plan->recurrences_at_once = at_once;
    }
    if (is_cluster || problem.heads == 1) return true;
    if (!found) most = std::min(all, 2 * launches);
    found = true;
  }
  return found;
}

// Chooses the kernels that keep both recurrent matrices of a projection apart, if they serve both passes: all calls of
// a training step have the same kernels. One direction runs at once.
bool choose_projected(const GpuRow& row, const RnnProblem& problem, RnnPlan* plan) {
  const uint32_t needs = problem.needs();
  if (!serves(Engine::kProjected, Pass::kForward, needs) || !serves(Engine::kProjected, Pass::kBackward, needs)) {
    return false;
  }
  plan->recurrences_at_once = 1;
  return choose_projected_shape(row, problem, Pass::kForward, &plan->shape.forward) &&
         choose_projected_shape(row, problem, Pass::kBackward, &plan->shape.backward);
}

// A batch whose tiles do not fit together beside the weights is served in passes of one tile a replica. Where that does
// not fit either, there are kernels that keep a projection apart, which were measured to take half the time of the
// large-layer kernels, and these.
bool choose_with_passes(const GpuRow& row, const RnnProblem& problem, RnnPlan* plan) {
  if (choose_both(row, problem, false, plan)) return true;
  if (problem.max_batch() > kTileColumns) {
    RnnProblem one_tile = problem;
    one_tile.batch = {kTileColumns};
    if (choose_both(row, one_tile, false, plan)) return true;
  }
  return choose_projected(row, problem, plan) || choose_both(row, problem, true, plan);
}

int64_t largest_legacy_hidden(const GpuRow& row, const RnnProblem& problem) {
  const int64_t largest = type_bytes(problem.type) == 2 ? row.legacy_largest16 : row.legacy_largest32;
  return static_cast<int64_t>(static_cast<double>(largest) / std::sqrt(static_cast<double>(problem.gates())));
}

// The original project's GPUs: capacity is what its largest RNN layer takes.
void plan_legacy(const GpuRow& row, const RnnProblem& problem, RnnPlan* plan) {
  if (problem.hidden <= plan->largest_hidden) {
    ResidentShape shape;
    shape.replicas = shape.tiles = 1;
    shape.blocks = row.multiprocessors;
    shape.units = static_cast<int>(ceil_div(problem.hidden, kTileRows * row.multiprocessors)) * kTileRows;
    shape.register_bytes = problem.gates() * problem.hidden * problem.hidden * type_bytes(problem.type);
    plan->shape = {shape, shape};
  }
  plan->reason = format("compute capability %lld.%lld (%s) is not compiled by the CUDA versions that prnn builds with",
                        row.arch / 10, row.arch % 10, row.name);
}

bool fits_hidden(const GpuRow& row, RnnProblem problem, int64_t hidden) {
  problem.hidden = hidden;
  problem.forward_plan = problem.backward_plan = {};
  RnnPlan scratch;
  return choose_with_passes(row, problem, &scratch);
}

// Whether a layer fits is monotonic in H up to the rounding of units and k-tiles, which steps of a k-tile respect.
int64_t find_largest_hidden(const GpuRow& row, const RnnProblem& problem) {
  if (problem.type == PRNN_DATA_DOUBLE) return 0;
  if (row.is_legacy()) return largest_legacy_hidden(row, problem);
  const int64_t step = k_tile_elements(problem.type == PRNN_DATA_FLOAT);
  int64_t low = 0, high = 8192 / step;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (fits_hidden(row, problem, middle * step)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * step;
}

// Why no kernel has room for a layer.
std::string why_no_room(const GpuRow& row, const RnnProblem& problem, int64_t largest_hidden) {
  RnnPlan scratch;
  RnnProblem without = problem;
  without.extras = {};
  without.masks = {};
  if (problem.needs() != without.needs() && choose_with_passes(row, without, &scratch)) {
    const std::string of_them = format("at most %lld", largest_hidden);
    return format(
        "resets, masks, and a gradient of c are of kernels that have no room for %lld sequences of hidden size %lld, "
        "%s",
        problem.max_batch(), problem.hidden, of_them.c_str());
  }
  if (problem.hidden <= largest_hidden) return "the plan of prnnSetRNNPlan has no kernel, or does not fit this GPU";
  return format("hidden size %lld is more than stays resident on this GPU, at most %lld for %s of this type",
                problem.hidden, largest_hidden, mode_name(problem.mode));
}

// An LSTM on the input of its gates.
RnnPlan plan_of_gates(const GpuRow& row, const RnnProblem& problem) {
  constexpr int64_t kLargestGrid = 4096, kStep = 16;
  RnnPlan plan;
  const auto is_resident = [&](const RnnProblem& p) {
    plan.shape = {};
    choose_norm_shapes(row, p, &plan.shape.forward, &plan.shape.backward);
    return plan.shape.forward.kernel.exists() && plan.shape.backward.kernel.exists();
  };
  RnnProblem other = problem;
  other.hidden = kLargestGrid;
  while (other.hidden > 0 && !is_resident(other)) other.hidden -= kStep;
  plan.largest_hidden = other.hidden;
  plan.resident = is_resident(problem);
  const int64_t most = largest_layer_norm_lstm(row, problem.type);
  plan.runnable = problem.hidden <= most;
  if (!plan.runnable) {
    plan.shape = {};
    plan.reason = format("hiddenSize is %lld; a timestep has room for %lld on this GPU", problem.hidden, most);
  }
  return plan;
}

}  // namespace

int resident_blocks(const GpuRow& row, int cluster) {
  if (cluster == 1) return row.multiprocessors;
  return cluster <= 4 ? row.cluster_blocks[cluster - 2] : 0;
}

int64_t type_bytes(prnnDataType_t type) { return type == PRNN_DATA_DOUBLE ? 8 : type == PRNN_DATA_FLOAT ? 4 : 2; }

int64_t padded_hidden(const RnnProblem& problem) {
  const int64_t unit = k_tile_elements(problem.type == PRNN_DATA_FLOAT);
  return ceil_div(problem.hidden, unit) * unit;
}

RnnPlan plan_rnn(const GpuRow& row, const RnnProblem& problem) {
  if (problem.takes_gates() && !row.is_legacy()) return plan_of_gates(row, problem);
  RnnPlan plan;
  plan.largest_hidden = find_largest_hidden(row, problem);
  if (problem.type == PRNN_DATA_DOUBLE) {
    plan.reason = "the data type is double; the resident kernels take float, half and bfloat16";
    return plan;
  }
  if (row.is_legacy()) {
    plan_legacy(row, problem, &plan);
    return plan;
  }
  if (problem.rows > kMostRows) {
    plan.reason =
        format("the sequences have %lld rows in all; the resident kernels take at most %lld", problem.rows, kMostRows);
    return plan;
  }
  RnnPlan chosen = plan;
  if (!choose_with_passes(row, problem, &chosen)) {
    plan.reason = why_no_room(row, problem, plan.largest_hidden);
    return plan;
  }
  chosen.runnable = true;
  chosen.together = plan_wavefront(row, problem);
  plan_side_by_side(row, problem, &chosen);
  chosen.cudnn = compare_with_cudnn(row, problem, chosen);
  return chosen;
}

BackendChoice choose_backend(const RnnProblem& problem, const RnnPlan& plan, prnnRNNBackend_t wanted) {
  const char* const lacks = why_not(Schedule::kCudnn, Pass::kBackward, problem.needs());
  BackendChoice choice;
  choice.resident =
      plan.runnable && (wanted == PRNN_BEST_BACKEND || (wanted == PRNN_PERSISTENT_BACKEND && plan.resident));
  choice.cudnn = lacks == nullptr && wanted != PRNN_PERSISTENT_BACKEND;
  if (wanted == PRNN_CUDNN_BACKEND) {
    choice.reason = lacks != nullptr ? lacks : plan.reason.empty() ? "PRNN_CUDNN_BACKEND was asked for" : plan.reason;
  } else if (plan.runnable && !choice.resident) {
    choice.reason = "the weights of the layer do not stay on the chip, which has room for " +
                    (plan.largest_hidden > 0 ? "hidden sizes up to " + std::to_string(plan.largest_hidden) : "none") +
                    ": a kernel for each timestep would run it";
  } else if (!choice.resident) {
    choice.reason = plan.reason + (wanted == PRNN_BEST_BACKEND && lacks != nullptr ? std::string("; ") + lacks : "");
  } else if (choice.cudnn && (problem.training ? plan.cudnn.training : plan.cudnn.inference)) {
    choice.reason = plan.cudnn.sentence;
  } else {
    choice.resident_first = true;
  }
  return choice;
}

std::string why_not_faster(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan) {
  const KernelId kernel = plan.shape.forward.kernel;
  if (!plan.runnable || problem.takes_gates() || kernel.is(Engine::kCluster) || kernel.is(Engine::kSimt)) return "";
  if (plan.keeps_projection_apart()) {
    return "faster kernels have no room for the product of both recurrent matrices, which stay apart";
  }
  if (problem.forward_plan.engine != PRNN_ENGINE_BEST) return "the plan of prnnSetRNNPlan says so";
  const bool is_float32 = problem.type == PRNN_DATA_FLOAT, gated = problem.gates() > 1;
  if (problem.tf32 && gated && row.largest_cluster > 1 && problem.max_batch() > kSimtSequences &&
      problem.hidden > kClusterHiddenTf32) {
    return format("in tf32, a cluster holds hidden sizes up to %lld; H is %lld", kClusterHiddenTf32, problem.hidden);
  }
  if (is_float32 && problem.max_batch() > kSimtSequences) {
    return format("in float32, simt kernels serve up to %lld sequences; N is %lld", kSimtSequences,
                  problem.max_batch());
  }
  if (is_float32) {
    return format("simt kernels have no room for %lld sequences of hidden size %lld, or are no faster",
                  problem.max_batch(), problem.hidden);
  }
  if (row.largest_cluster == 1) return "the GPU has no clusters of thread blocks";
  if (resident_blocks(row, 4) == 0) {
    return std::string("how many clusters stay resident is not in the row of the ") + row.name;
  }
  const int64_t most = cluster_hidden(gated);
  const std::string cluster =
      problem.hidden > most
          ? format("a cluster holds hidden sizes up to %lld; H is %lld", most, problem.hidden)
          : format("clusters have no room for %lld sequences of hidden size %lld", problem.max_batch(), problem.hidden);
  if (kernel.is(Engine::kWgmma) || kernel.is(Engine::kWgmmaSplitK) || kernel.is(Engine::kWgmmaMulticast))
    return cluster;
  if (!row.has_wgmma) return cluster + "; the GPU has no wgmma";
  if (problem.gates() == 1) return cluster + "; wgmma kernels are of LSTM and GRU";
  if (kernel.is(Engine::kMmaLarge) || kernel.is(Engine::kMmaLargeExtras)) {
    return cluster + "; the layer fits no other kernel";
  }
  if (!serves(Engine::kWgmmaMulticast, Pass::kForward, problem.needs())) {
    return cluster + "; wgmma kernels take resets alone, and no masks and no c of every timestep";
  }
  if (!serves(Engine::kWgmma, Pass::kForward, problem.needs())) {
    return cluster + "; with resets, wgmma kernels serve larger batches alone";
  }
  return cluster + "; with so few sequences mma is as fast as wgmma";
}

}  // namespace prnn
