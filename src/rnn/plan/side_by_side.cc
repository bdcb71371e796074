#include "rnn/plan/side_by_side.h"

#include <algorithm>

#include "rnn/plan/schedule.h"
#include "rnn/plan/wavefront.h"
#include "rnn/plan/wgmma.h"

namespace prnn {
namespace {

// Hidden sizes for which it was measured to be faster, on an H200.
constexpr int64_t kSmallest = 544, kLargest = 1024;

// Why a pass over the layers is no faster so; empty if it is. `wavefront`: there is one for the pass.
std::string why_not_faster(const RnnProblem& p, bool wavefront) {
  if (p.gates() == 1) return "layers without gates are no faster side by side";
  if (p.hidden < kSmallest || p.hidden > kLargest) {
    return "layers run side by side from hidden size " + std::to_string(kSmallest) + " to " + std::to_string(kLargest);
  }
  if (wavefront && p.max_batch() <= kTileColumns) {
    return "up to " + std::to_string(kTileColumns) + " sequences a wavefront is faster";
  }
  if (p.steps() < kSideBySideSteps) {
    return "layers run side by side from " + std::to_string(kSideBySideSteps) + " timesteps on; T is " +
           std::to_string(p.steps());
  }
  return "";
}

LayersTogether choose(const GpuRow& row, const RnnProblem& problem, Pass pass, bool wavefront,
                      const ResidentShape& alone) {
  const auto takes_halves = [&](const ResidentShape& of) {
    const bool exchanges_states = !of.exchanges_in_cluster() && !of.kernel.is(Engine::kWgmmaMulticast);
    return exchanges_states && of.batch_per_pass() >= problem.max_batch();
  };
  LayersTogether two{1, {}, why_not_faster(problem, wavefront)};
  if (!two.reason.empty()) return two;
  if (takes_halves(alone) && choose_split_k_shape(row, problem, pass, 2, &two.shape) && takes_halves(two.shape)) {
    two.layers = 2;
  } else {
    two.reason = "two layers of hidden size " + std::to_string(problem.hidden) + " have no room side by side for " +
                 std::to_string(problem.max_batch()) + " sequences";
  }
  return two;
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
  return launch.count > 1 ? plan.side_by_side[pass].shape : plan.shape[pass];
}

SideBySidePlan plan_side_by_side(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan,
                                 const WavefrontPlan& wavefront) {
  SideBySidePlan found;
  if (problem.layers == 1) return found;
  if (problem.projection > 0) {  // what there is to say, the wavefront says
    found.forward.reason = wavefront.forward.reason;
    found.backward.reason = wavefront.backward.reason;
    return found;
  }
  found.forward.reason = found.backward.reason = why_not_together(problem, Schedule::kSideBySide, Pass::kForward);
  if (!found.forward.reason.empty()) return found;
  // Who asks for the size of a workspace does not say whether arrays are aligned: without wavefronts for that reason
  // alone, layers must not need more.
  const bool wavefront_forward = wavefront.forward.exist() || !problem.aligned;
  found.forward = choose(row, problem, Pass::kForward, wavefront_forward, plan.shape.forward);
  found.backward = choose(row, problem, Pass::kBackward, wavefront.backward.exist(), plan.shape.backward);
  if (!found.backward.exist()) return found;
  RnnPlan with = plan;
  with.side_by_side = found;
  const std::vector<int64_t> partials = bias_partials(problem, with);
  if (*std::max_element(partials.begin(), partials.end()) > problem.max_batch()) {
    found.backward = {1, found.backward.shape, "one sequence leaves room for one sum of the biases' gradients"};
  }
  return found;
}

}  // namespace prnn
