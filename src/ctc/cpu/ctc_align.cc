#include <cmath>
#include <limits>

#include "core/cpu/loss_schedule.h"
#include "ctc/cpu/ctc_loss.h"

namespace prnn {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Scratch for one sequence. States in the order blank, label 0, blank, label 1, ..., blank.
struct Slot {
  double* labels;         // {L}: log-probabilities of the frame
  double *best, *before;  // {2 L + 1}: the best score of a way that ends in a state, in this frame and the one before
  unsigned char* came;    // {T, 2 L + 1}: by how many states that way moved on in this frame: 0, 1 or 2

  static size_t size(const prnnCTCLossOptions_t& o) {
    const int64_t states = 2 * o.maxTargets + 1;
    const int64_t bytes = (o.maxTargets + 2 * states) * static_cast<int64_t>(sizeof(double)) + o.maxFrames * states;
    return static_cast<size_t>((bytes + 15) / 16 * 16);
  }

  Slot(const prnnCTCLossOptions_t& o, void* space) : labels(static_cast<double*>(space)) {
    best = labels + o.maxTargets;
    before = best + 2 * o.maxTargets + 1;
    came = reinterpret_cast<unsigned char*>(before + 2 * o.maxTargets + 1);
  }
};

template <class T>
double best_path(const CtcParams& params, int64_t n, const int* targets, Slot slot, int* begins, int* ends) {
  const prnnCTCLossOptions_t& o = params.options;
  const int64_t frames = params.frame_lengths[n], symbols = params.target_lengths[n], states = 2 * symbols + 1;
  std::fill(begins, begins + o.maxTargets, -1);
  std::fill(ends, ends + o.maxTargets, -1);
  if (frames == 0) return symbols == 0 ? 0 : kMinusInfinity;
  for (int64_t t = 0; t < frames; ++t) {
    std::swap(slot.best, slot.before);
    const double blank = ctc_frame<T>(params, n, t, targets, symbols, slot.labels, nullptr);
    for (int64_t state = 0; state < states; ++state) {
      const int64_t i = state / 2;
      const bool is_label = state % 2 == 1;
      double score = t > 0 ? slot.before[state] : state == 0 ? 0 : kMinusInfinity;
      int moved = 0;
      const auto consider = [&](double other, int moves) {
        if (other > score || std::isnan(other)) score = other, moved = moves;
      };
      if (state > 0) consider(t > 0 ? slot.before[state - 1] : state == 1 ? 0 : kMinusInfinity, 1);
      if (t > 0 && is_label && i > 0 && targets[i] != targets[i - 1]) consider(slot.before[state - 2], 2);
      slot.best[state] = score + (is_label ? slot.labels[i] : blank);
      slot.came[t * states + state] = static_cast<unsigned char>(moved);
    }
  }
  int64_t state = states - 1;
  if (symbols > 0 && (slot.best[state - 1] > slot.best[state] || std::isnan(slot.best[state - 1]))) --state;
  const double score = slot.best[state];
  if (std::isnan(score) || score == kMinusInfinity) return score;
  for (int64_t t = frames - 1; t >= 0; --t) {
    if (state % 2 == 1) {
      begins[state / 2] = static_cast<int>(t);
      if (ends[state / 2] < 0) ends[state / 2] = static_cast<int>(t + 1);
    }
    state -= slot.came[t * states + state];
  }
  return score;
}

template <class T>
void align(const CtcParams& params, void* scores, int* begins, int* ends) {
  const prnnCTCLossOptions_t& o = params.options;
  const std::vector<int64_t> offsets = ctc_target_offsets(params);
  const size_t slot_size = Slot::size(o);
  const int64_t slots = slots_of_call(o.batch);
#pragma omp parallel for schedule(static, 1) num_threads(region_threads(true, slots))
  for (int64_t i = 0; i < slots; ++i) {
    const Slot slot(o, static_cast<char*>(params.workspace) + i * slot_size);
    for (int64_t n = i; n < o.batch; n += slots) {
      static_cast<T*>(scores)[n] = static_cast<T>(best_path<T>(params, n, params.targets + offsets[n], slot,
                                                               begins + n * o.maxTargets, ends + n * o.maxTargets));
    }
  }
}

}  // namespace

size_t ctc_align_workspace_size_cpu(const prnnCTCLossOptions_t& options) {
  return slots_size(Slot::size(options), options.batch);
}

void run_ctc_align_cpu(const CtcParams& params, void* scores, int* begins, int* ends) {
  params.options.dataType == PRNN_DATA_DOUBLE ? align<double>(params, scores, begins, ends)
                                              : align<float>(params, scores, begins, ends);
}

}  // namespace prnn
