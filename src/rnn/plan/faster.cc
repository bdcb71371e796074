#include "rnn/plan/faster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "rnn/plan/cudnn_algorithm.h"
#include "rnn/plan/schedule.h"

namespace prnn {
namespace {

// By so much more dropout between two layers lengthens cuDNN's training steps than the resident kernels'
// (docs/resident_kernels_measured.md). Its share of a call shrinks with T, but 7 in 1,000 layers would change backends
// with it from 64 timesteps on, where the T that has the least to lose stands for all.
constexpr double kDropoutMicroseconds = 17;
constexpr int64_t kDropoutSteps = 64, kStepsWithDropout = 256;

// Logarithms, as in MeasuredPoint.
struct Estimate {
  double inference = INFINITY, training = INFINITY, microseconds = 0;
};

// The GPU whose measurements count for a row.
const char* measured_gpu(const GpuRow& row) {
  const auto is_of_row = [&](const MeasuredKind& kind) { return std::strcmp(kind.gpu, row.name) == 0; };
  const MeasuredKind* const end = kMeasuredKinds + kMeasuredKindCount;
  return std::any_of(kMeasuredKinds, end, is_of_row) ? row.name : kMeasuredKinds[0].gpu;
}

// An empty one where nothing was measured.
MeasuredKind kind_of(const char* gpu, const RnnProblem& problem, const RnnPlan& plan) {
  const prnnRNNMode_t mode = problem.mode == PRNN_RNN_RELU ? PRNN_RNN_TANH : problem.mode;
  const auto is_this = [&](const MeasuredKind& kind) {
    return std::strcmp(kind.gpu, gpu) == 0 && kind.mode == mode && kind.is_float == (problem.type == PRNN_DATA_FLOAT) &&
           kind.tf32 == problem.tf32 && kind.is_projected == (problem.projection > 0) &&
           kind.apart == plan.keeps_projection_apart();
  };
  const MeasuredKind* const end = kMeasuredKinds + kMeasuredKindCount;
  const MeasuredKind* const found = std::find_if(kMeasuredKinds, end, is_this);
  return found == end ? MeasuredKind{} : *found;
}

// Properties of a layer that decide which kernels the two backends have for it. Rows that are not aligned to 16 bytes
// slow cuDNN's products down, and the resident kernels copy weights of several gates to whole k-tiles. Weights that the
// GPU's registers have no room for leave the mma-large kernels alone, whose time grows with each tile of sequences. The
// two 16-bit types differ by cuDNN's algorithm alone, so that the other one's points are hardly further away.
struct Traits {
  bool several_layers, two_directions;
  bool has_aligned_rows, has_whole_tiles, fits_registers, runs_multicast;
  CudnnAlgorithm algorithm;
  bool runs_step_by_step;

  int count_differences(const Traits& other) const {
    return (several_layers != other.several_layers) + (two_directions != other.two_directions) +
           (has_aligned_rows != other.has_aligned_rows) + (has_whole_tiles != other.has_whole_tiles) +
           2 * (fits_registers != other.fits_registers) + (runs_multicast != other.runs_multicast) +
           (algorithm != other.algorithm) + (runs_step_by_step != other.runs_step_by_step);
  }
};

Traits traits_of(const GpuRow& row, const RnnProblem& inference) {
  const int64_t weights =
      inference.gates() * inference.hidden * inference.hidden * static_cast<int64_t>(type_bytes(inference.type));
  return {inference.layers > 1,
          inference.directions > 1,
          inference.hidden * type_bytes(inference.type) % 16 == 0,
          inference.gates() == 1 || padded_hidden(inference) == inference.hidden,
          weights <= row.multiprocessors * row.register_bytes,
          runs_multicast(row, inference),
          choose_algorithm({row.arch, row.multiprocessors}, inference),
          runs_step_by_step(inference)};
}

// Where a layer lies among others. A doubling of H is a distance of 1, one of N or T of 0.6.
using Place = std::array<float, 3>;

Place place_of(int64_t hidden, int64_t batch, int64_t steps) {
  const auto log2 = [](int64_t value) { return std::log2(static_cast<float>(value)); };
  return {log2(hidden), 0.6f * log2(batch), 0.6f * log2(std::min(steps, kManySteps))};
}

// Regression by least squares on the place, relative to that of the layer asked for, in which points count by the
// inverse fourth power of their distance: it goes through measured points, and beyond them follows their trend. The
// ridge keeps slopes small that few points tell.
class LocalRegression {
 public:
  void add(const Place& x, float distance, const MeasuredPoint& point) {
    const double square = std::max(distance * distance, 1e-10f), weight = 1 / (square * square);
    const double row[] = {1, x[0], x[1], x[2], point.inference, point.training, point.microseconds};
    for (int i = 0; i < 4; ++i) {
      for (int j = i; j < 7; ++j) sums_[i][j] += weight * row[i] * row[j];
    }
  }

  // At the layer asked for; infinite without points.
  Estimate solve() {
    constexpr double kRidge = 0.02;
    if (sums_[0][0] == 0) return {};
    for (int i = 1; i < 4; ++i) sums_[i][i] += kRidge * sums_[0][0];
    // Gaussian elimination of the symmetric matrix from the last row on leaves the intercepts in the first.
    for (int last = 3; last > 0; --last) {
      for (int i = 0; i < last; ++i) {
        const double factor = sums_[i][last] / sums_[last][last];
        for (int j = i; j < last; ++j) sums_[i][j] -= factor * sums_[j][last];
        for (int j = 4; j < 7; ++j) sums_[i][j] -= factor * sums_[last][j];
      }
    }
    return {sums_[0][4] / sums_[0][0], sums_[0][5] / sums_[0][0], sums_[0][6] / sums_[0][0]};
  }

 private:
  double sums_[4][7] = {};  // from the diagonal on; then the right sides
};

Estimate estimate(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan) {
  const char* const gpu = measured_gpu(row);
  const GpuRow& gpu_row = *find_gpu_row(gpu);
  RnnProblem other = inference_of(problem);
  other.batch.assign(static_cast<size_t>(std::min(problem.steps(), kManySteps)), problem.max_batch());
  const Traits traits = traits_of(row, other);
  const Place place = place_of(problem.hidden, problem.max_batch(), problem.steps());
  LocalRegression regression;
  const MeasuredKind kind = kind_of(gpu, problem, plan);
  for (const MeasuredPoint* point = kind.points; point < kind.points + kind.count; ++point) {
    other.type = point->type;
    other.layers = point->layers;
    other.directions = point->directions;
    other.hidden = other.input = point->hidden;
    other.projection = point->projection;
    other.batch.assign(static_cast<size_t>(point->steps), point->batch);
    Place x = place_of(point->hidden, point->batch, point->steps);
    const auto differences = static_cast<float>(traits.count_differences(traits_of(gpu_row, other)));
    float distance = differences + (point->type == problem.type ? 0 : 0.1f);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] -= place[i];
      distance += std::abs(x[i]);
    }
    regression.add(x, distance * (1 + differences), *point);
  }
  Estimate found = regression.solve();
  if (problem.dropout.probability > 0 && found.training < 0) {
    const int64_t steps = problem.steps() < kDropoutSteps ? problem.steps() : kStepsWithDropout;
    const double resident =
        std::exp(found.microseconds) * static_cast<double>(steps * problem.layers * problem.directions);
    const double more = kDropoutMicroseconds * static_cast<double>(problem.layers - 1);
    found.training = std::log(std::exp(found.training) + more / resident);
  }
  return found;
}

// cuDNN runs sequences of different lengths with its standard kernels, launches for each timestep. Where those of one
// length have its persistent ones, the ratios say nothing of them.
bool loses_persistent_kernels(const GpuRow& gpu, const RnnProblem& problem) {
  if ((problem.needs() & Needs::kLengths) == 0) return false;
  RnnProblem even = problem;
  even.batch.back() = even.max_batch();
  return choose_algorithm({gpu.arch, gpu.multiprocessors}, even) != kStandard;
}

std::string percent_of(double log_ratio) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * std::exp(log_ratio));
  return text;
}

}  // namespace

CudnnVerdict compare_with_cudnn(const GpuRow& row, const RnnProblem& problem, const RnnPlan& plan) {
  CudnnVerdict verdict;
  const uint32_t needs = problem.needs();
  if (problem.steps() > kMostCudnnSteps || !serves(Schedule::kCudnn, Pass::kBackward, needs)) return verdict;
  if ((needs & Needs::kChosenSplit) != 0 || loses_persistent_kernels(row, problem)) return verdict;
  const Estimate found = estimate(row, problem, plan);
  verdict.training = found.training < 0;
  verdict.inference = found.inference < 0 && !runs_step_by_step(inference_of(problem));
  if (!verdict.training && !verdict.inference) return verdict;
  const std::string steps = problem.steps() < kManySteps ? ", T = " + std::to_string(problem.steps()) : "";
  verdict.sentence = "cuDNN is faster at N = " + std::to_string(problem.max_batch()) + steps + ": ";
  if (verdict.training) verdict.sentence += "in training " + percent_of(found.training);
  if (verdict.training && verdict.inference) verdict.sentence += ", ";
  if (verdict.inference) verdict.sentence += "in inference " + percent_of(found.inference);
  verdict.sentence += std::string(" of the resident kernels' time, measured on the ") + measured_gpu(row);
  return verdict;
}

}  // namespace prnn
