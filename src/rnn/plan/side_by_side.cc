#include "rnn/plan/side_by_side.h"

#include <algorithm>

#include "rnn/plan/wavefront.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

// Why such layers are no faster so; empty if they are. Measured on an H200.
std::string why_not_faster(const RnnProblem& p, Pass pass) {
  if (p.skip_input) return "the first layer has no input matrices";
  if (p.steps() < kSideBySideSteps) {
    return "layers run side by side from " + std::to_string(kSideBySideSteps) + " timesteps on; T is " +
           std::to_string(p.steps());
  }
  if (p.gates() == 1) return "layers without gates are no faster side by side";
  if (p.hidden <= 512 || p.hidden > 1024) {
    return "layers of hidden size " + std::to_string(p.hidden) + " are no faster side by side";
  }
  if (pass == Pass::kForward && p.max_batch() <= kTileColumns) {
    return "layers are faster side by side from " + std::to_string(kTileColumns + 1) + " sequences on; N is " +
           std::to_string(p.max_batch());
  }
  return "";
}

bool choose(const GpuRow& row, const RnnProblem& problem, Pass pass, const ResidentShape& alone, ResidentShape* shape,
            std::string* reason) {
  const auto serves_all = [&](const ResidentShape& of) {
    const bool exchanges_states = !of.exchanges_in_cluster() && !of.kernel.is(Engine::kWgmmaMulticast);
    return exchanges_states && of.batch_per_pass() >= problem.max_batch();
  };
  *reason = why_not_faster(problem, pass);
  if (!reason->empty()) return false;
  if (!serves_all(alone) || !choose_split_k_shape(row, problem, pass, 2, shape) || !serves_all(*shape)) {
    *reason = "two layers of hidden size " + std::to_string(problem.hidden) + " have no room side by side for " +
              std::to_string(problem.max_batch()) + " sequences";
  }
  return reason->empty();
}

}  // namespace

std::vector<SideBySideLaunch> side_by_side_launches(int64_t layers, int64_t steps, Pass pass) {
  const bool backward = pass == Pass::kBackward;
  const int64_t middle = steps - steps / 2;
  const LayerHalf early{0, 0, middle}, late{0, middle, steps - middle};
  const auto half_of = [&](int64_t place, bool is_second) {  // of the pass
    LayerHalf half = is_second != backward ? late : early;
    half.layer = backward ? layers - 1 - place : place;
    return half;
  };
  std::vector<SideBySideLaunch> launches;
  for (int64_t place = 0; place <= layers; ++place) {
    SideBySideLaunch launch{};
    if (place > 0) launch.half[launch.count++] = half_of(place - 1, true);
    if (place < layers) launch.half[launch.count++] = half_of(place, false);
    launches.push_back(launch);
  }
  return launches;
}

const ResidentShape& shape_of(const RnnPlan& plan, const SideBySideLaunch& launch, Pass pass) {
  const SideBySidePlan& both = plan.side_by_side;
  if (pass == Pass::kForward) return launch.count > 1 ? both.forward_shape : plan.forward;
  return launch.count > 1 ? both.backward_shape : plan.backward;
}

std::vector<int64_t> side_by_side_bias_partials(const RnnProblem& problem, const RnnPlan& plan) {
  std::vector<int64_t> partials(static_cast<size_t>(problem.layers), 0);
  for (const SideBySideLaunch& launch : side_by_side_launches(problem.layers, problem.steps(), Pass::kBackward)) {
    const ReplicaShares shares(shape_of(plan, launch, Pass::kBackward), problem.max_batch());
    for (int i = 0; i < launch.count; ++i) partials[launch.half[i].layer] += shares.replicas;
  }
  return partials;
}

SideBySidePlan plan_side_by_side(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan) {
  SideBySidePlan found;
  if (problem.layers == 1) return found;
  found.forward_reason = found.backward_reason = why_one_after_the_other(problem);
  if (!found.forward_reason.empty()) return found;
  found.forward = choose(row, problem, Pass::kForward, plan.forward, &found.forward_shape, &found.forward_reason);
  if (!choose(row, problem, Pass::kBackward, plan.backward, &found.backward_shape, &found.backward_reason)) {
    return found;
  }
  RnnPlan with = plan;
  with.side_by_side = found;
  const std::vector<int64_t> partials = side_by_side_bias_partials(problem, with);
  found.backward = *std::max_element(partials.begin(), partials.end()) <= problem.max_batch();
  if (!found.backward) {
    found.backward_reason = "the sums of the bias gradients have room for " + std::to_string(problem.max_batch()) +
                            " parts, one for each sequence";
  }
  return found;
}

}  // namespace prnn
