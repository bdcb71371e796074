#include "rnn/plan/schedule.h"

#include <algorithm>

#include "rnn/plan/step.h"
#include "rnn/plan/wavefront_chunked.h"

namespace prnn {
namespace {

std::vector<StackLaunch> forward_launches(const RnnProblem& p, const RnnPlan& plan) {
  const WavefrontPlan& wavefront = plan.wavefront;
  const bool step_by_step = runs_step_by_step(p);
  std::vector<StackLaunch> launches;
  for (int64_t layer = 0; layer < p.layers;) {
    const int64_t most = step_by_step ? 1 : wavefront.forward_layers;
    const int64_t count = step_by_step ? 1 : layers_of_launch(wavefront.forward, most, p.layers - layer);
    const Schedule one = step_by_step ? Schedule::kStepByStep : Schedule::kOneByOne;
    launches.push_back({count > 1 ? Schedule::kWavefront : one, layer, count, {}});
    layer += count;
  }
  return launches;
}

// From the top.
std::vector<StackLaunch> backward_launches(const RnnProblem& p, const RnnPlan& plan, bool aligned) {
  const WavefrontPlan& wavefront = plan.wavefront;
  const bool together = !is_chunked(wavefront.backward) || aligned;
  std::vector<StackLaunch> launches;
  for (int64_t above = p.layers; above > p.frozen;) {
    const int64_t count = layers_of_launch(wavefront.backward, together ? wavefront.backward_layers : 1, above);
    above -= count;
    launches.push_back({count > 1 ? Schedule::kWavefront : Schedule::kOneByOne, above, count, {}});
  }
  return launches;
}

}  // namespace

std::vector<StackLaunch> stack_launches(const RnnProblem& problem, const RnnPlan& plan, Pass pass, bool aligned) {
  const bool backward = pass == Pass::kBackward;
  if (!(backward ? plan.side_by_side.backward : plan.side_by_side.forward)) {
    return backward ? backward_launches(problem, plan, aligned) : forward_launches(problem, plan);
  }
  const auto is_frozen = [&](const LayerHalf& half) { return backward && half.layer < problem.frozen; };
  std::vector<StackLaunch> launches;
  for (const SideBySideLaunch& halves : side_by_side_launches(problem.layers, problem.steps(), pass)) {
    if (std::all_of(halves.half, halves.half + halves.count, is_frozen)) break;
    launches.push_back({Schedule::kSideBySide, 0, 0, halves});
  }
  return launches;
}

std::vector<int64_t> bias_partials(const RnnProblem& problem, const RnnPlan& plan) {
  const bool by_chunks = is_chunked(plan.wavefront.backward);
  std::vector<int64_t> partials(static_cast<size_t>(problem.layers), 0);
  for (const StackLaunch& launch : stack_launches(problem, plan, Pass::kBackward)) {
    if (launch.schedule == Schedule::kSideBySide) {
      const ReplicaShares shares(shape_of(plan, launch.halves, Pass::kBackward), problem.max_batch());
      for (int i = 0; i < launch.halves.count; ++i) partials[launch.halves.half[i].layer] += shares.replicas;
      continue;
    }
    // A layer alone in a stack by chunks leaves as many as the others.
    const bool together = launch.schedule == Schedule::kWavefront || by_chunks;
    const int64_t of_layer = together ? plan.wavefront.backward.replicas : bias_partials(problem, plan.backward);
    std::fill_n(partials.begin() + launch.first, launch.count, of_layer);
  }
  return partials;
}

}  // namespace prnn
