#include "rnn/plan/faster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "rnn/plan/cudnn_algorithm.h"
#include "rnn/plan/schedule.h"
#include "rnn/plan/step_time.h"

namespace prnn {
namespace {

// Larger batches go by this one where they were not measured.
constexpr int64_t kMostMeasured = 1024;

// cuDNN's products in 16 bits are slower where the rows of their matrices are not aligned to 16 bytes: for more than so
// many sequences, its time over that between the aligned sizes that were measured
// (docs/resident_kernels_measured.md).
constexpr int64_t kUnalignedSequences = 64;
constexpr double kUnalignedTime = 1.65;

// Conditions that slow a call of few timesteps down often slow cuDNN's down, too, so that the ratio follows less than
// the whole of an estimate: where a fifth of the measured points, or of the sizes, are held out, 0.5 to 0.7 of its
// logarithm are best.
constexpr double kShareOfShortCalls = 0.7;

// Where three timesteps lie between two and four: cuDNN has other algorithms of large layers from four on, so that it
// takes less than half of the way.
constexpr double kPlaceOfThreeSteps = 0.45;

// By so much more dropout between two layers lengthens cuDNN's training steps than the resident kernels'
// (docs/resident_kernels_measured.md).
constexpr double kDropoutMicroseconds = 17;

Precision precision_of(const RnnProblem& problem) {
  switch (problem.type) {
    case PRNN_DATA_BFLOAT16: return Precision::kBfloat16;
    case PRNN_DATA_HALF: return Precision::kHalf;
    default: return problem.tf32 ? Precision::kTf32 : Precision::kFloat32;
  }
}

Stack stack_of(const RnnProblem& problem, const RnnPlan& plan) {
  const bool is_one = problem.layers == 1 && problem.directions == 1;
  if (plan.keeps_projection_apart()) return is_one ? Stack::kProjectedApart : Stack::kProjectedApartLayers;
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

const GpuRatios& ratios_of(const GpuRow& gpu) {
  const auto is_of_gpu = [&](const GpuRatios& ratios) { return std::strcmp(ratios.gpu, gpu.name) == 0; };
  const GpuRatios* const end = kGpuRatios + kGpuRatiosCount;
  const GpuRatios* const found = std::find_if(kGpuRatios, end, is_of_gpu);
  return found == end ? kGpuRatios[0] : *found;
}

// The last batch that was measured.
const MeasuredBatch& last_of(const MeasuredRatios& row) {
  const MeasuredBatch* last = row.batches;
  while (last + 1 < std::end(row.batches) && last[1].batch != 0) ++last;
  return *last;
}

// Whether a row was measured up to a batch, or until cuDNN was ahead.
bool says_of(const MeasuredRatios& row, int64_t batch, bool training) {
  const MeasuredBatch& last = last_of(row);
  return last.batch >= std::min<int64_t>(batch, kMostMeasured) || (training ? last.training : last.inference) < 100;
}

// The rows of one kind of layer and number of timesteps, which follow each other.
using Kind = std::tuple<const GpuRatios*, prnnRNNMode_t, Precision, Stack, int>;
using Rows = std::pair<const MeasuredRatios*, const MeasuredRatios*>;  // first, after the last

Rows rows_of(const Kind& kind) {
  static const std::map<Kind, Rows> all = [] {
    std::map<Kind, Rows> found;
    for (const GpuRatios* gpu = kGpuRatios; gpu < kGpuRatios + kGpuRatiosCount; ++gpu) {
      for (const MeasuredRatios* row = gpu->rows; row < gpu->rows + gpu->count; ++row) {
        const Kind of_row = {gpu, row->mode, row->precision, row->stack, row->steps};
        found.try_emplace(of_row, row, row).first->second.second = row + 1;
      }
    }
    return found;
  }();
  const auto found = all.find(kind);
  return found == all.end() ? Rows{nullptr, nullptr} : found->second;
}

// Interpolates the ratios for one problem. Both backends' times have steps: the resident kernels' where one sequence or
// unit more takes another pass over the weights or leaves room for fewer replicas, cuDNN's where it has other
// algorithms. So what is interpolated is cuDNN's time in the unit of an estimate of the resident kernels', between
// layers of the same algorithm where there are such. Of stacks, which were measured at fewer sizes, it is that time in
// the unit of cuDNN's for one layer.
class Interpolation {
 public:
  Interpolation(const GpuRow& gpu, const RnnProblem& problem, const RnnPlan& plan, bool training)
      : gpu_(gpu),
        stack_(stack_of(problem, plan)),
        training_(training),
        size_{problem.hidden, problem.max_batch()},
        problem_(problem) {
    problem_.batch.clear();  // it is copied often
  }

  // The ratio for one of kMeasuredSteps; infinite where nothing was measured.
  double ratio(int steps) {
    if (rows_around(stack_, steps, size_).first == nullptr) return INFINITY;
    const bool is_slower =
        problem_.type != PRNN_DATA_FLOAT && size_.hidden % 8 != 0 && size_.batch > kUnalignedSequences;
    return std::exp(log_ratio(stack_, steps, size_)) * (is_slower ? kUnalignedTime : 1);
  }

 private:
  static constexpr int kManySteps = kMeasuredSteps[kMeasuredStepCount - 1],
                       kFewSteps = kMeasuredSteps[kMeasuredStepCount - 2];

  struct Size {
    int64_t hidden, batch;
    bool operator<(const Size& other) const { return std::tie(hidden, batch) < std::tie(other.hidden, other.batch); }
  };

  // The rows on both sides of a size that say something of its batch, the same one beyond the ends; NULL where there
  // are none.
  Rows rows_around(Stack stack, int steps, Size size) const {
    const prnnRNNMode_t mode = problem_.mode == PRNN_RNN_RELU ? PRNN_RNN_TANH : problem_.mode;
    const auto [begin, end] = rows_of({&ratios_of(gpu_), mode, precision_of(problem_), stack, steps});
    const MeasuredRatios *low = nullptr, *high = nullptr;
    for (const MeasuredRatios* row = begin; row < end; ++row) {
      if (!says_of(*row, size.batch, training_)) continue;
      if (low == nullptr || row->hidden <= size.hidden) low = row;
      high = row;
      if (row->hidden >= size.hidden) break;
    }
    return {low, high};
  }

  // The ratio's logarithm for a size. Beyond the sizes that were measured, the ratio differs from that of the last one
  // as it does for one layer. That of one layer is the same, but below the smallest differs as it does with few
  // timesteps, if those of many were not measured there, or with many.
  double log_ratio(Stack stack, int steps, Size size) {
    const auto [low, high] = rows_around(stack, steps, size);
    if (low == nullptr) return 0;
    if (base_of(stack) == stack && size.hidden < low->hidden) {
      const int other = steps < kManySteps ? kManySteps : kFewSteps;
      const MeasuredRatios* const smaller = rows_around(stack, other, size).first;
      const Size smallest = {low->hidden, size.batch};
      const bool is_known = smaller != nullptr && smaller->hidden < low->hidden;
      return log_ratio(stack, steps, smallest) +
             (is_known ? log_ratio(stack, other, size) - log_ratio(stack, other, smallest) : 0);
    }
    if (base_of(stack) == stack) size.hidden = std::min<int64_t>(size.hidden, high->hidden);
    const double place = place_of(steps, size, {low->hidden, size.batch}, {high->hidden, size.batch},
                                  place_between(static_cast<double>(size.hidden), low->hidden, high->hidden));
    return mix(log_cudnn(*low, size.batch), log_cudnn(*high, size.batch), place) - log_unit(stack, steps, size);
  }

  // cuDNN's time for a batch and the row's hidden size.
  double log_cudnn(const MeasuredRatios& row, int64_t wanted) {
    const int64_t batch = std::min<int64_t>(wanted, last_of(row).batch);
    const MeasuredBatch* high = row.batches;
    while (high->batch < batch) ++high;
    const MeasuredBatch* const low = high > row.batches ? high - 1 : high;
    const double place = place_of(row.steps, {row.hidden, batch}, {row.hidden, low->batch}, {row.hidden, high->batch},
                                  place_between(static_cast<double>(batch), low->batch, high->batch));
    const auto unit = [&](int64_t n) { return log_unit(row.stack, row.steps, {row.hidden, n}); };
    const auto time = [&](const MeasuredBatch& point) {
      return std::log((training_ ? point.training : point.inference) / 100.0) + unit(point.batch);
    };
    return mix(time(*low), time(*high), place) + unit(wanted) - unit(batch);
  }

  // The kind of layers that those of a kind are compared with: itself, if with none.
  static Stack base_of(Stack stack) {
    if (stack == Stack::kSeveralLayers || stack == Stack::kTwoDirections) return Stack::kOneLayer;
    return stack == Stack::kProjectedLayers ? Stack::kProjected : stack;
  }

  // The estimate of the resident kernels' time over the base's ratio.
  double log_unit(Stack stack, int steps, Size size) {
    const double own = log_resident(stack, steps, size);
    const Stack base = base_of(stack);
    return base == stack ? own : own - log_resident(base, steps, size) - log_ratio(base, steps, size);
  }

  double log_resident(Stack stack, int steps, Size size) {
    const StepEstimate& step = estimate(stack, size);
    return (steps < kManySteps ? kShareOfShortCalls : 1) * std::log(step.microseconds + step.of_call / steps);
  }

  // At the one of two sizes that is alike, if the other is not.
  double place_of(int steps, Size size, Size low, Size high, double between) {
    if (are_alike(steps, low, high)) return between;
    return are_alike(steps, size, high) ? 1 : are_alike(steps, size, low) ? 0 : between;
  }

  // Whether the times of two sizes have no step between them.
  bool are_alike(int steps, Size a, Size b) {
    return estimate(stack_, a).is_large == estimate(stack_, b).is_large && algorithm(steps, a) == algorithm(steps, b);
  }

  CudnnAlgorithm algorithm(int steps, Size size) const {
    return choose_algorithm({gpu_.arch, gpu_.multiprocessors}, problem_of(stack_, size, steps));
  }

  const StepEstimate& estimate(Stack stack, Size size) {
    const auto [found, is_new] = estimates_.try_emplace({stack, size});
    if (is_new) found->second = estimate_step(gpu_, problem_of(stack, size), training_);
    return found->second;
  }

  RnnProblem problem_of(Stack stack, Size size, int steps = 1) const {
    RnnProblem other = problem_;
    // With P as it is, another H may not fit; of kernels that keep a projection apart, passes alone make steps.
    const bool is_apart = stack_ == Stack::kProjectedApart || stack_ == Stack::kProjectedApartLayers;
    if (!is_apart) other.hidden = size.hidden;
    if (stack != stack_) other.layers = other.directions = 1;
    other.batch.assign(static_cast<size_t>(steps), size.batch);
    return other;
  }

  const GpuRow& gpu_;
  const Stack stack_;
  const bool training_;
  const Size size_;
  RnnProblem problem_;  // of any batch
  std::map<std::pair<Stack, Size>, StepEstimate> estimates_;
};

// Where there are no measurements of a few timesteps, the ratio of more of them.
std::array<double, kMeasuredStepCount> measured_ratios(const GpuRow& gpu, const RnnProblem& problem,
                                                       const RnnPlan& plan, bool training) {
  std::array<double, kMeasuredStepCount> ratios;
  Interpolation interpolation(gpu, problem, plan, training);
  for (int i = kMeasuredStepCount - 1; i >= 0; --i) {
    ratios[i] = interpolation.ratio(kMeasuredSteps[i]);
    if (std::isinf(ratios[i]) && i + 1 < kMeasuredStepCount) ratios[i] = ratios[i + 1];
  }
  return ratios;
}

double at_steps(const std::array<double, kMeasuredStepCount>& ratios, int64_t steps) {
  const int* const end = kMeasuredSteps + kMeasuredStepCount;
  const int* const next = std::lower_bound(kMeasuredSteps, end, steps);
  if (next == end) return ratios.back();
  const int64_t i = next - kMeasuredSteps;
  if (*next == steps || std::isinf(ratios[i])) return ratios[i];
  const double between = place_between(static_cast<double>(steps), kMeasuredSteps[i - 1], *next);
  const double place = steps == 3 ? kPlaceOfThreeSteps : between;
  return std::exp(mix(std::log(ratios[i - 1]), std::log(ratios[i]), place));
}

// Large layers with a projection in a stack were measured over few timesteps in inference alone: cuDNN is ahead up to
// 12 (docs/resident_kernels_measured.md). The resident kernels multiply two matrices first.
bool has_too_few_steps(const RnnProblem& problem, const RnnPlan& plan) {
  return problem.projection > 0 && !plan.keeps_projection_apart() && problem.layers > 1 && problem.hidden > 1024 &&
         problem.steps() <= 12 && problem.forward_plan.engine == PRNN_ENGINE_BEST;
}

bool is_faster(double ratio) { return ratio < 1; }

// Kernels that keep a projection apart serve what they were measured to be faster for, and what cuDNN has not.
bool is_unmeasured(const RnnPlan& plan, double ratio) { return plan.keeps_projection_apart() && std::isinf(ratio); }

// Dropout's share of a call shrinks with T, but 7 in 1,000 layers would change backends with it between these: the T
// that has the least to lose stands for all from kManySteps on.
constexpr int64_t kManySteps = 64, kStepsOfMany = 256;

double training_ratio_of(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan) {
  const double ratio = at_steps(measured_ratios(row, problem, plan, true), problem.steps());
  if (problem.dropout.probability == 0 || !is_faster(ratio)) return ratio;
  const int64_t steps = problem.steps() < kManySteps ? problem.steps() : kStepsOfMany;
  return ratio +
         kDropoutMicroseconds * static_cast<double>(problem.layers - 1) / estimate_microseconds(row, problem, steps);
}

// cuDNN runs sequences of different lengths with its standard kernels, launches for each timestep. Where those of one
// length have its persistent ones, the ratios say nothing of them.
bool loses_persistent_kernels(const GpuRow& gpu, const RnnProblem& problem) {
  if ((problem.needs() & Needs::kLengths) == 0) return false;
  RnnProblem even = problem;
  even.batch.back() = even.max_batch();
  return choose_algorithm({gpu.arch, gpu.multiprocessors}, even) != kStandard;
}

std::string percent_of(double ratio) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * ratio);
  return text;
}

}  // namespace

CudnnVerdict compare_with_cudnn(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan) {
  CudnnVerdict verdict;
  const uint32_t needs = problem.needs();
  if (problem.steps() > kMostCudnnSteps || !serves(Schedule::kCudnn, Pass::kBackward, needs)) return verdict;
  if ((needs & Needs::kChosenSplit) != 0 || loses_persistent_kernels(row, problem)) return verdict;
  const double training_ratio = training_ratio_of(row, problem, plan),
               inference_ratio = at_steps(measured_ratios(row, problem, plan, false), problem.steps());
  const bool step_by_step = runs_step_by_step(inference_of(problem));
  const bool in_training = is_faster(training_ratio), in_inference = !step_by_step && is_faster(inference_ratio);
  const bool unmeasured_training = is_unmeasured(plan, training_ratio),
             unmeasured_inference = !step_by_step && is_unmeasured(plan, inference_ratio),
             too_few_steps = !step_by_step && has_too_few_steps(problem, plan);
  verdict.training = in_training || unmeasured_training;
  verdict.inference = in_inference || unmeasured_inference || too_few_steps;
  const std::string batch = std::to_string(problem.max_batch()), steps = std::to_string(problem.steps());
  if (in_training || in_inference) {
    const std::string training = "in training " + percent_of(training_ratio),
                      inference = "in inference " + percent_of(inference_ratio);
    verdict.sentence = "cuDNN is faster at N = " + batch +
                       (problem.steps() < kMeasuredSteps[kMeasuredStepCount - 1] ? ", T = " + steps : "") + ": " +
                       (in_training ? training + (in_inference ? ", " + inference : "") : inference) +
                       " of the resident kernels' time, measured on the " + ratios_of(row).gpu;
  } else if (unmeasured_training || unmeasured_inference) {
    verdict.sentence =
        "no measurement says that the kernels with both recurrent matrices apart are faster than cuDNN at N = " + batch;
  } else if (too_few_steps) {
    verdict.sentence = "in inference, cuDNN is faster for a stack with a projection and T = " + steps;
  }
  return verdict;
}

}  // namespace prnn
