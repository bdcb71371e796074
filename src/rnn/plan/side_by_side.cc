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

// Why a pass over the layers does not run so; empty if it does, with `two` as their layout.
std::string choose(const GpuRow& row, const RnnProblem& problem, Pass pass, const RnnPlan& plan, LayersTogether* two) {
  // Who asks for the size of a workspace does not say whether arrays are aligned: without wavefronts for that reason
  // alone, layers must not need more.
  const bool wavefront = plan.together[pass].exist() || (pass == Pass::kForward && !problem.aligned);
  const std::string slower = why_not_faster(problem, wavefront);
  if (!slower.empty()) return slower;
  const auto takes_halves = [&](const ResidentShape& of) {
    const bool exchanges_states = !of.exchanges_in_cluster() && !of.kernel.is(Engine::kWgmmaMulticast);
    return exchanges_states && of.batch_per_pass() >= problem.max_batch();
  };
  *two = {Schedule::kSideBySide, 2, {}, ""};
  if (!takes_halves(plan.shape[pass]) || !choose_split_k_shape(row, problem, pass, 2, &two->shape) ||
      !takes_halves(two->shape)) {
    return "two layers of hidden size " + std::to_string(problem.hidden) + " have no room side by side for " +
           std::to_string(problem.max_batch()) + " sequences";
  }
  if (pass == Pass::kForward) return "";
  RnnPlan with = plan;
  with.together.backward = *two;
  const std::vector<int64_t> partials = bias_partials(problem, with);
  const bool has_room = *std::max_element(partials.begin(), partials.end()) <= problem.max_batch();
  return has_room ? "" : "one sequence leaves room for one sum of the biases' gradients";
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
  return launch.count > 1 ? plan.together[pass].shape : plan.shape[pass];
}

void plan_side_by_side(const GpuRow& row, const RnnProblem& problem, RnnPlan* plan) {
  if (problem.layers == 1 || problem.projection > 0) return;  // of layers with a projection, the wavefront says why not
  const std::string unserved = why_not_together(problem, Schedule::kSideBySide, Pass::kForward);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    LayersTogether two, &together = plan->together[pass];
    const std::string reason = unserved.empty() ? choose(row, problem, pass, *plan, &two) : unserved;
    if (reason.empty()) {
      together = two;
    } else if (!together.exist() && together.reason != reason) {
      together.reason += "; " + reason;
    }
  }
}

}  // namespace prnn
