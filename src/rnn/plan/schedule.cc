#include "rnn/plan/schedule.h"

#include <algorithm>

#include "rnn/plan/wavefront_chunked.h"

namespace prnn {
namespace {

// Sequences and timesteps up to which the kernels were measured to be faster than the resident ones and than cuDNN's.
int64_t most_sequences_by_step(const RnnProblem& problem) {
  if (problem.type == PRNN_DATA_FLOAT) return problem.tf32 ? 8 : 32;
  return problem.hidden > 1024 ? 8 : 16;
}

// Bytes of the first layer's matrices, which each timestep reads again: from L2 if they fit there.
int64_t matrix_bytes(const RnnProblem& problem) {
  const int64_t of_gates = 4 * problem.hidden * (problem.input + problem.state());
  return (of_gates + problem.hidden * problem.projection) * (problem.type == PRNN_DATA_FLOAT ? 4 : 2);
}

int64_t most_steps(const RnnProblem& problem) {
  if (problem.projection > 0 && matrix_bytes(problem) > 40'000'000) return matrix_bytes(problem) > 128'000'000 ? 0 : 1;
  if (problem.projection > 0) return problem.layers > 1 ? 3 : 4;
  return problem.hidden > 1024 ? 1 : 2;
}

// Partial sums of the bias gradients that the backward kernels leave for a layer alone.
int64_t partials_alone(const RnnProblem& problem, const ResidentShape& backward) {
  const int64_t batch = problem.max_batch(), per_pass = backward.batch_per_pass();
  const int64_t whole = (batch - 1) / per_pass;  // passes before the last one
  return whole * backward.replicas + ReplicaShares(backward, batch - whole * per_pass).replicas;
}

// Layers alone or as wavefronts, backward from the highest to the lowest that is not frozen.
std::vector<StackLaunch> launches_in_order(const RnnProblem& p, const RnnPlan& plan, Pass pass, bool aligned) {
  const LayersTogether& wavefront = plan.together[pass];
  const bool backward = pass == Pass::kBackward, step_by_step = !backward && runs_step_by_step(p);
  const bool alone = step_by_step || (backward && is_chunked(wavefront.shape) && !aligned);
  const Schedule one = step_by_step ? Schedule::kStepByStep : Schedule::kOneByOne;
  std::vector<StackLaunch> launches;
  for (int64_t done = 0, all = backward ? p.layers - p.frozen : p.layers; done < all;) {
    const int64_t count = layers_of_launch(wavefront.shape, alone ? 1 : wavefront.layers, p.layers - done);
    const int64_t first = backward ? p.layers - done - count : done;
    launches.push_back({count > 1 ? Schedule::kWavefront : one, first, count, {}});
    done += count;
  }
  return launches;
}

}  // namespace

bool runs_step_by_step(const RnnProblem& problem) {
  if (problem.training || problem.type == PRNN_DATA_DOUBLE || problem.gates() == 1 || problem.hidden < 256)
    return false;
  return serves(Schedule::kStepByStep, Pass::kForward, problem.needs()) &&
         problem.max_batch() <= most_sequences_by_step(problem) && problem.steps() <= most_steps(problem);
}

std::vector<StackLaunch> stack_launches(const RnnProblem& problem, const RnnPlan& plan, Pass pass, bool aligned) {
  if (!plan.together[pass].are(Schedule::kSideBySide)) return launches_in_order(problem, plan, pass, aligned);
  const auto is_frozen = [&](const LayerHalf& half) { return pass == Pass::kBackward && half.layer < problem.frozen; };
  std::vector<StackLaunch> launches;
  for (const SideBySideLaunch& halves : side_by_side_launches(problem.layers, problem.steps(), pass)) {
    if (std::all_of(halves.half, halves.half + halves.count, is_frozen)) break;
    launches.push_back({Schedule::kSideBySide, 0, 0, halves});
  }
  return launches;
}

std::vector<int64_t> bias_partials(const RnnProblem& problem, const RnnPlan& plan) {
  const bool by_chunks = is_chunked(plan.together.backward.shape);
  std::vector<int64_t> partials(static_cast<size_t>(problem.layers), 0);
  for (const StackLaunch& launch : stack_launches(problem, plan, Pass::kBackward)) {
    if (launch.schedule == Schedule::kSideBySide) {
      const ReplicaShares shares(shape_of(plan, launch.halves, Pass::kBackward), problem.max_batch());
      for (int i = 0; i < launch.halves.count; ++i) partials[launch.halves.half[i].layer] += shares.replicas;
      continue;
    }
    // A layer alone in a stack by chunks leaves as many as the others.
    const bool together = launch.schedule == Schedule::kWavefront || by_chunks;
    const int64_t of_layer =
        together ? plan.together.backward.shape.replicas : partials_alone(problem, plan.shape.backward);
    std::fill_n(partials.begin() + launch.first, launch.count, of_layer);
  }
  return partials;
}

}  // namespace prnn
