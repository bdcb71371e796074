// The states of a sequence with L symbols are L + 1 blanks, B(0) .. B(L), and L labels, Y(0) .. Y(L - 1), in the order
// B(0) Y(0) B(1) Y(1) ... B(L). Blanks and labels lie in arrays of their own, so that a frame's states are computed
// side by side from the frame before. Y(i) is reached from Y(i - 1) only if the two symbols differ: `skip` is 0 or
// -infinity.
#include "ctc/cpu/ctc_loss.h"

#include <cmath>
#include <limits>

#include "core/cpu/loss_kernels.h"
#include "core/cpu/loss_schedule.h"
#include "core/reduce_costs.h"

namespace prnn {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Scratch for one sequence. Index 0 of the label arrays is a label before the first, which no path has.
struct Slot {
  int64_t pitch;    // L + 2
  double* blank;    // {T}: log-probability of the blank in each frame
  double* label;    // {T, pitch}: of label i, at i + 1
  double* skip;     // {pitch}
  double* alpha_b;  // {T, pitch}: sum over the ways that end in B(i) in this frame, at i
  double* alpha_y;  // {T, pitch}: in Y(i), at i + 1
  double *beta_b, *beta_y, *ahead_b, *ahead_y, *zeros;  // {pitch}

  static size_t size(const prnnCTCLossOptions_t& o) {
    const int64_t pitch = o.maxTargets + 2;
    const int64_t words = o.maxFrames * (1 + 3 * pitch) + 6 * pitch;
    return static_cast<size_t>((words + 1) / 2 * 2) * sizeof(double);
  }

  Slot(const prnnCTCLossOptions_t& o, void* space) : pitch(o.maxTargets + 2), blank(static_cast<double*>(space)) {
    label = blank + o.maxFrames;
    alpha_b = label + o.maxFrames * pitch;
    alpha_y = alpha_b + o.maxFrames * pitch;
    skip = alpha_y + o.maxFrames * pitch;
    beta_b = skip + pitch;
    beta_y = beta_b + pitch;
    ahead_b = beta_y + pitch;
    ahead_y = ahead_b + pitch;
    zeros = ahead_y + pitch;
  }
};

// The reserve space, which a forward call leaves for the backward one; per frame: the log-normaliser in two parts, and
// the probabilities that a path is in any of the blanks and in each of the labels. A frame takes 3 elements and one for
// each symbol: maxTargets of them, or with concatenated targets as many as the sequence has.
template <class T>
class Reserve {
 public:
  Reserve(const CtcParams& params, void* space) : params_(params), data_(static_cast<T*>(space)) {}

  static int64_t elements(const prnnCTCLossOptions_t& o) {
    const bool padded = o.targetLayout == PRNN_TARGETS_PADDED;
    return o.maxFrames * (3 * o.batch + (padded ? o.batch * o.maxTargets : o.targetElements));
  }

  // `offset`: that of the sequence's symbols in the targets.
  T* norm(int64_t n, int64_t t, int64_t offset) const {
    const prnnCTCLossOptions_t& o = params_.options;
    const bool padded = o.targetLayout == PRNN_TARGETS_PADDED;
    const int64_t width = 3 + (padded ? o.maxTargets : params_.target_lengths[n]);
    return data_ + o.maxFrames * (3 * n + offset) + t * width;
  }
  T* shares(int64_t n, int64_t t, int64_t offset) const { return norm(n, t, offset) + 2; }

 private:
  const CtcParams& params_;
  T* data_;
};

double sum_paths(const Slot& s, int64_t frames, int64_t symbols) {
  const LossKernels& kernels = loss_kernels();
  for (int64_t t = 0; t < frames; ++t) {
    double* b = s.alpha_b + t * s.pitch;
    double* y = s.alpha_y + t * s.pitch;
    const double* label = s.label + t * s.pitch;
    y[0] = kMinusInfinity;
    if (t == 0) {
      std::fill(b, b + symbols + 1, kMinusInfinity);
      std::fill(y, y + symbols + 1, kMinusInfinity);
      b[0] = s.blank[0];
      if (symbols > 0) y[1] = label[1];
      continue;
    }
    const double* from_b = b - s.pitch;
    const double* from_y = y - s.pitch;
    kernels.add_two(from_b, from_y, s.blank[t], symbols + 1, b);
    kernels.add_three(from_y + 1, from_b, from_y, s.skip + 1, label + 1, symbols, y + 1);
  }
  if (frames == 0) return symbols == 0 ? 0 : kMinusInfinity;
  const double end_b = s.alpha_b[(frames - 1) * s.pitch + symbols], end_y = s.alpha_y[(frames - 1) * s.pitch + symbols];
  double total;
  kernels.add_two(&end_b, &end_y, 0.0, 1, &total);
  return total;
}

// Writes the shares of all frames, given alpha and the total. beta counts the ways on from a state, without the state's
// own frame; ahead is beta with it.
template <class T>
void write_shares(const Slot& s, const Reserve<T>& reserve, int64_t n, int64_t offset, int64_t frames, int64_t symbols,
                  double total) {
  const LossKernels& kernels = loss_kernels();
  std::fill(s.zeros, s.zeros + symbols + 1, 0.0);
  for (int64_t t = frames - 1; t >= 0; --t) {
    T* shares = reserve.shares(n, t, offset);
    if (total == kMinusInfinity) {
      std::fill(shares, shares + symbols + 1, T(0));
      continue;
    }
    if (t == frames - 1) {
      std::fill(s.beta_b, s.beta_b + symbols + 1, kMinusInfinity);
      std::fill(s.beta_y, s.beta_y + symbols + 1, kMinusInfinity);
      s.beta_b[symbols] = 0;
      if (symbols > 0) s.beta_y[symbols] = 0;
    } else {
      const double* label = s.label + (t + 1) * s.pitch;
      for (int64_t i = 0; i <= symbols; ++i) s.ahead_b[i] = s.blank[t + 1] + s.beta_b[i];
      for (int64_t i = 1; i <= symbols; ++i) s.ahead_y[i] = label[i] + s.beta_y[i];
      s.ahead_y[symbols + 1] = kMinusInfinity;
      kernels.add_two(s.ahead_b, s.ahead_y + 1, 0.0, symbols + 1, s.beta_b);
      // skip[i + 1] allows label i -> label i + 1
      kernels.add_three(s.ahead_y + 1, s.ahead_b + 1, s.ahead_y + 2, s.skip + 2, s.zeros, symbols, s.beta_y + 1);
    }
    double* const share = s.ahead_b;  // free until the next frame
    kernels.path_share(s.alpha_b + t * s.pitch, s.beta_b, s.zeros, total, symbols + 1, share);
    double blanks = 0;
    for (int64_t i = 0; i <= symbols; ++i) blanks += share[i];
    shares[0] = static_cast<T>(blanks);
    kernels.path_share(s.alpha_y + t * s.pitch + 1, s.beta_y + 1, s.zeros, total, symbols, share);
    for (int64_t i = 0; i < symbols; ++i) shares[1 + i] = static_cast<T>(share[i]);
  }
}

template <class T>
void forward(const CtcParams& params, const std::vector<int64_t>& offsets, void* costs, void* reserve_space) {
  const prnnCTCLossOptions_t& o = params.options;
  const Reserve<T> reserve(params, reserve_space);
  const size_t slot_size = Slot::size(o);
  const auto slot_at = [&](int64_t slot) { return Slot(o, static_cast<char*>(params.workspace) + slot * slot_size); };
  for_each_sequence(
      o.batch, slots_of_call(o.batch), ctc_work(o), o.maxFrames, [&](int64_t n) { return params.frame_lengths[n]; },
      [&](int64_t n, int64_t slot) {
        const int* targets = params.targets + offsets[n];
        const int64_t symbols = params.target_lengths[n];
        double* skip = slot_at(slot).skip;
        std::fill(skip, skip + symbols + 2, kMinusInfinity);
        for (int64_t i = 1; i < symbols; ++i) skip[i + 1] = targets[i] == targets[i - 1] ? kMinusInfinity : 0.0;
      },
      [&](int64_t n, int64_t t, int64_t slot) {
        const Slot s = slot_at(slot);
        s.blank[t] = ctc_frame<T>(params, n, t, params.targets + offsets[n], params.target_lengths[n],
                                  s.label + t * s.pitch + 1, reserve_space ? reserve.norm(n, t, offsets[n]) : nullptr);
      },
      [&](int64_t n, int64_t slot) {
        const Slot s = slot_at(slot);
        const int64_t frames = params.frame_lengths[n], symbols = params.target_lengths[n];
        const double total = sum_paths(s, frames, symbols);
        static_cast<T*>(costs)[n] = total == kMinusInfinity && o.zeroInfinity ? T(0) : static_cast<T>(0 - total);
        if (reserve_space) write_shares(s, reserve, n, offsets[n], frames, symbols, total);
      });
}

// g(k) = p(k) sum(shares) - (shares of the blank or the labels that are k); without the first term for
// log-probabilities. x and g may be the same.
template <class T>
void backward(const CtcParams& params, const std::vector<int64_t>& offsets, const void* given_gradients,
              void* gradients, const void* reserve_space) {
  const prnnCTCLossOptions_t& o = params.options;
  const Reserve<T> reserve(params, const_cast<void*>(reserve_space));
  const CostGradients<T> scales = cost_gradients<T>(o, given_gradients);
#pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(region_threads(ctc_work(o) >= kWorkForThreads))
  for (int64_t t = 0; t < o.maxFrames; ++t) {
    for (int64_t n = 0; n < o.batch; ++n) {
      const int64_t offset = t * o.timeStride + n * o.batchStride;
      T* g = static_cast<T*>(gradients) + offset;
      const T scale = scales(n);
      const int64_t symbols = params.target_lengths[n];
      const T* norm = reserve.norm(n, t, offsets[n]);
      const T* shares = reserve.shares(n, t, offsets[n]);
      double mass = 0;
      if (t < params.frame_lengths[n]) {
        for (int64_t i = 0; i <= symbols; ++i) mass += static_cast<double>(shares[i]);
      }
      if (o.input == PRNN_LOSS_LOGITS && mass != 0) {
        scaled_softmax(loss_kernels(), static_cast<const T*>(params.activations) + offset, o.classes, norm[0], norm[1],
                       static_cast<T>(mass) * scale, g);
      } else {
        std::fill_n(g, o.classes, T(0));
      }
      if (mass == 0) continue;
      g[o.blank] -= shares[0] * scale;
      const int* targets = params.targets + offsets[n];
      for (int64_t i = 0; i < symbols; ++i) g[targets[i]] -= shares[1 + i] * scale;
    }
  }
}

}  // namespace

std::vector<int64_t> ctc_target_offsets(const CtcParams& params) {
  const prnnCTCLossOptions_t& o = params.options;
  std::vector<int64_t> offsets(o.batch);
  int64_t offset = 0;
  for (int64_t n = 0; n < o.batch; ++n) {
    offsets[n] = offset;
    offset += o.targetLayout == PRNN_TARGETS_PADDED ? o.maxTargets : params.target_lengths[n];
  }
  return offsets;
}

template <class T>
double ctc_frame(const CtcParams& params, int64_t n, int64_t t, const int* targets, int64_t symbols, double* labels,
                 T* norm) {
  const prnnCTCLossOptions_t& o = params.options;
  const T* x = static_cast<const T*>(params.activations) + t * o.timeStride + n * o.batchStride;
  double log_norm = 0;
  if (o.input == PRNN_LOSS_LOGITS) {
    T maximum;
    double log_sum;
    log_normaliser(loss_kernels(), x, o.classes, &maximum, &log_sum);
    if (norm) {
      norm[0] = maximum;
      norm[1] = static_cast<T>(log_sum);
    }
    log_norm = static_cast<double>(maximum) + log_sum;
  }
  for (int64_t i = 0; i < symbols; ++i) labels[i] = static_cast<double>(x[targets[i]]) - log_norm;
  return static_cast<double>(x[o.blank]) - log_norm;
}

template double ctc_frame<float>(const CtcParams&, int64_t, int64_t, const int*, int64_t, double*, float*);
template double ctc_frame<double>(const CtcParams&, int64_t, int64_t, const int*, int64_t, double*, double*);

size_t ctc_loss_workspace_size_cpu(const prnnCTCLossOptions_t& options) {
  return slots_size(Slot::size(options), options.batch);
}

size_t ctc_loss_reserve_size_cpu(const prnnCTCLossOptions_t& options) {
  const size_t element = options.dataType == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
  return element * static_cast<size_t>(Reserve<float>::elements(options));
}

void run_ctc_loss_cpu(const CtcParams& params, void* costs, void* gradients, void* reserve) {
  const std::vector<int64_t> offsets = ctc_target_offsets(params);
  const auto run = [&](auto real) {
    using T = decltype(real);
    forward<T>(params, offsets, costs, reserve);
    reduce_costs(reduced_costs<T>(params.options, costs));
    if (gradients) backward<T>(params, offsets, nullptr, gradients, reserve);
  };
  params.options.dataType == PRNN_DATA_DOUBLE ? run(double()) : run(float());
}

void run_ctc_loss_backward_cpu(const CtcParams& params, const void* cost_gradients, void* gradients,
                               const void* reserve) {
  const auto run = params.options.dataType == PRNN_DATA_DOUBLE ? backward<double> : backward<float>;
  run(params, ctc_target_offsets(params), cost_gradients, gradients, reserve);
}

}  // namespace prnn
