#include "rnn/plan/faster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "rnn/plan/step.h"

namespace prnn {
namespace {

// Measurements of one point differ by a percent or two, and the resident kernels take less memory.
constexpr double kMargin = 0.98;

Precision precision_of(const RnnProblem& problem) {
  switch (problem.type) {
    case PRNN_DATA_BFLOAT16: return Precision::kBfloat16;
    case PRNN_DATA_HALF: return Precision::kHalf;
    default: return problem.tf32 ? Precision::kTf32 : Precision::kFloat32;
  }
}

Stack stack_of(const RnnProblem& problem) {
  const bool is_one = problem.layers == 1 && problem.directions == 1;
  if (problem.projection > 0) return is_one ? Stack::kProjected : Stack::kProjectedLayers;
  if (problem.directions > 1) return Stack::kTwoDirections;
  return is_one ? Stack::kOneLayer : Stack::kSeveralLayers;
}

// Where `value` lies between two measured ones, on a logarithmic scale; beyond the ends, at the end.
double place_between(double value, double low, double high) {
  if (high <= low) return 0;
  return std::clamp(std::log(value / low) / std::log(high / low), 0.0, 1.0);
}

double mix(double low, double high, double place) { return low + (high - low) * place; }

// The measured batches around one, and where it lies between them, from 0 to 1.
struct BatchPlace {
  int low, high;
  double place;
};

// The resident kernels take about as long for every batch that takes as many passes over the weights and fills as many
// tiles of 8 sequences.
BatchPlace place_of_batch(const GpuRow& row, const RnnProblem& problem, Pass pass) {
  const int64_t batch = problem.max_batch(),
                sequences = batch <= kTileColumns ? batch : ceil_div(batch, kTileColumns) * kTileColumns;
  int high = 0;
  while (high + 1 < kMeasuredBatchCount && kMeasuredBatches[high] < sequences) ++high;
  const int low = std::max(high - 1, 0);
  const double place = place_between(static_cast<double>(sequences), kMeasuredBatches[low], kMeasuredBatches[high]);
  if (place == 0 || place == 1) return {low, high, place};
  const auto passes = [&](int64_t n) { return count_passes(row, problem, n, pass); };
  const int64_t own = passes(sequences);
  const bool is_like_high = own == passes(kMeasuredBatches[high]) && own > passes(kMeasuredBatches[low]);
  return {low, high, is_like_high ? 1 : place};
}

double log_ratio(const MeasuredRatios& row, const BatchPlace& batch) {
  return mix(std::log(row.percent[batch.low] / 100.0), std::log(row.percent[batch.high] / 100.0), batch.place);
}

const GpuRatios& ratios_of(const GpuRow& gpu) {
  for (const GpuRatios& ratios : kGpuRatios) {
    if (std::strcmp(ratios.gpu, gpu.name) == 0) return ratios;
  }
  return kGpuRatios.front();
}

// The rows on both sides of the problem's hidden size, the same one beyond the ends; NULL where there are none.
std::pair<const MeasuredRatios*, const MeasuredRatios*> find_rows(const GpuRow& gpu, const RnnProblem& problem,
                                                                  bool training, int steps) {
  const prnnRNNMode_t mode = problem.mode == PRNN_RNN_RELU ? PRNN_RNN_TANH : problem.mode;
  const MeasuredRatios *low = nullptr, *high = nullptr;
  for (const MeasuredRatios& row : ratios_of(gpu).rows) {
    if (row.mode != mode || row.precision != precision_of(problem) || row.stack != stack_of(problem) ||
        row.training != training || row.steps != steps) {
      continue;
    }
    if (low == nullptr || row.hidden <= problem.hidden) low = &row;
    high = &row;
    if (row.hidden >= problem.hidden) break;
  }
  return {low, high};
}

// The largest layer that the cuDNN backend runs on cuDNN's kernels for small ones (rnn/cudnn/algorithm.cc).
int64_t largest_small_layer(const RnnProblem& problem) {
  if (problem.type == PRNN_DATA_BFLOAT16) return 0;
  return problem.gates() > 1 ? 128 : 256;
}

// Where the hidden size lies between two measured ones, from 0 to 1: at the one with kernels of its own kind, where the
// large-layer kernels begin between them, or cuDNN's for small layers end.
double place_of_hidden(const GpuRow& gpu, const RnnProblem& problem, const MeasuredRatios& low,
                       const MeasuredRatios& high) {
  const auto is_large = [&](int64_t hidden) { return needs_large_kernels(gpu, problem, hidden); };
  if (low.hidden < high.hidden && is_large(low.hidden) != is_large(high.hidden))
    return is_large(problem.hidden) ? 1 : 0;
  const int64_t edge = largest_small_layer(problem);
  if (low.hidden <= edge && problem.hidden > edge) return 1;
  return place_between(static_cast<double>(problem.hidden), low.hidden, high.hidden);
}

// Where there are no measurements of a few timesteps, the ratio of more of them.
std::array<double, kMeasuredStepCount> measured_ratios(const GpuRow& gpu, const RnnProblem& problem, bool training) {
  std::array<double, kMeasuredStepCount> ratios;
  const BatchPlace batch = place_of_batch(gpu, problem, training ? Pass::kBackward : Pass::kForward);
  double ratio = INFINITY;
  for (int i = kMeasuredStepCount - 1; i >= 0; --i) {
    const auto [low, high] = find_rows(gpu, problem, training, kMeasuredSteps[i]);
    if (low != nullptr) {
      const double place = place_of_hidden(gpu, problem, *low, *high);
      ratio = std::exp(mix(log_ratio(*low, batch), log_ratio(*high, batch), place));
    }
    ratios[i] = ratio;
  }
  return ratios;
}

double at_steps(const std::array<double, kMeasuredStepCount>& ratios, int64_t steps) {
  const int* const end = kMeasuredSteps + kMeasuredStepCount;
  const int* const next = std::lower_bound(kMeasuredSteps, end, steps);
  if (next == end) return ratios.back();
  const int64_t i = next - kMeasuredSteps;
  if (*next == steps || std::isinf(ratios[i])) return ratios[i];
  const double place = place_between(static_cast<double>(steps), kMeasuredSteps[i - 1], *next);
  return std::exp(mix(std::log(ratios[i - 1]), std::log(ratios[i]), place));
}

// With a projection, the resident kernels need the product of two matrices first, which takes as long as some timesteps
// on cuDNN. Of inference; measured on an H200: 1024 -> 512, 2048 -> 640 and 512 -> 256,
// alone and in stacks of 12, 8 and 5.
bool has_too_few_steps(const RnnProblem& problem) {
  if (problem.projection == 0) return false;
  if (problem.forward_plan.engine != PRNN_ENGINE_BEST) return false;
  const int64_t of_one_layer = problem.hidden <= 1024 ? 4 : 9;
  return problem.steps() < (problem.layers > 1 ? of_one_layer * 3 / 2 : of_one_layer);
}

bool is_faster(double ratio) { return ratio < kMargin; }

std::string percent_of(double ratio) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * ratio);
  return text;
}

}  // namespace

CudnnTime estimate_cudnn_time(const GpuRow& row, const RnnProblem& problem) {
  if (problem.forward_plan.engine != PRNN_ENGINE_BEST || problem.backward_plan.engine != PRNN_ENGINE_BEST) return {};
  if (problem.heads > 1) return {};  // cuDNN has none
  CudnnTime time;
  time.inference = measured_ratios(row, problem, false);
  time.training = measured_ratios(row, problem, true);
  time.measured_on = ratios_of(row).gpu;
  return time;
}

bool is_cudnn_faster(const RnnProblem& problem, const RnnPlan& plan) {
  const int64_t steps = problem.steps();
  if (problem.training) return is_faster(at_steps(plan.cudnn_time.training, steps));
  if (runs_step_by_step(problem)) return false;
  return is_faster(at_steps(plan.cudnn_time.inference, steps)) || has_too_few_steps(problem);
}

std::string why_cudnn_is_faster(const RnnProblem& problem, const RnnPlan& plan) {
  const double training_ratio = at_steps(plan.cudnn_time.training, problem.steps()),
               inference_ratio = at_steps(plan.cudnn_time.inference, problem.steps());
  const bool step_by_step = runs_step_by_step(inference_of(problem));
  const bool in_training = is_faster(training_ratio), in_inference = !step_by_step && is_faster(inference_ratio);
  if (!in_training && !in_inference) {
    return !step_by_step && has_too_few_steps(problem)
               ? "in inference, cuDNN is faster for a projection and T = " + std::to_string(problem.steps())
               : "";
  }
  const std::string training = "in training " + percent_of(training_ratio),
                    inference = "in inference " + percent_of(inference_ratio);
  const std::string steps =
      problem.steps() < kMeasuredSteps[kMeasuredStepCount - 1] ? ", T = " + std::to_string(problem.steps()) : "";
  return "cuDNN is faster at N = " + std::to_string(problem.max_batch()) + steps + ": " +
         (in_training ? training + (in_inference ? ", " + inference : "") : inference) +
         " of the resident kernels' time, measured on the " + plan.cudnn_time.measured_on;
}

}  // namespace prnn
