#include "rnnt/cpu/rnnt_loss.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/reduce_costs.h"
#include "rnnt/cpu/rnnt_batch.h"

namespace prnn {
namespace {

// The reserve that a forward call leaves for the backward one: per row the log-normaliser in two parts (logits alone),
// and the shares of the blank's and the label's arc in the cost, which are all that the gradients depend on.
template <class T>
struct Reserve {
  T* norms;   // {rows, 2}
  T* shares;  // {rows, 2}

  Reserve(const RnntParams& params, void* space)
      : norms(static_cast<T*>(space)),
        shares(norms + (params.options.input == PRNN_LOSS_LOGITS ? 2 * params.rows() : 0)) {}
};

// Writes the shares of frame t from a lattice after Lattice::share().
template <class T>
void keep_shares(Lattice& lattice, const prnnRNNTLossOptions_t& o, const RnntSequence& s, int64_t t, T* shares) {
  double label_before = 0;  // that of (t, u - 1)
  for (int64_t u = s.first(t); u < s.end(t); ++u) {
    const int64_t step = lattice.step(t, u);
    const bool inside = lattice.has(step, u);
    const double label = inside ? lattice.label(step, u) : 0;
    double blank = inside ? lattice.blank(step, u) : 0;
    if (o.type == PRNN_RNNT_CONSTRAINED) blank += label_before;  // the blank that the label's arc includes
    T* share = shares + 2 * s.row(t, u);
    share[0] = static_cast<T>(blank);
    share[1] = static_cast<T>(label);
    label_before = label;
  }
}

// The gradient of one cell: g(k) = p(k) (b + l) - [k is the blank] b - [k is the label] l for logits, where b and l are
// the arcs' shares; without the first term for log-probabilities. x and g may be the same.
template <class T>
void cell_gradient(const RnntParams& params, const T* x, const T* norm, const T* share, int64_t label, T scale, T* g) {
  const prnnRNNTLossOptions_t& o = params.options;
  const T b = share[0], l = share[1] * static_cast<T>(1 + o.fastEmitLambda);
  const int64_t blank = o.input == PRNN_LOSS_GATHERED ? 0 : o.blank;
  const T clamp = static_cast<T>(o.clamp);
  const T factor = clamp > 0 ? T(1) : scale;
  if (o.input == PRNN_LOSS_LOGITS && !(b == 0 && l == 0)) {
    scaled_softmax(loss_kernels(), x, o.classes, norm[0], norm[1], (b + l) * factor, g);
  } else {
    std::fill_n(g, o.classes, T(0));
  }
  g[blank] -= b * factor;
  if (label >= 0) g[label] -= l * factor;
  if (clamp > 0) {
    for (int64_t k = 0; k < o.classes; ++k) g[k] = (g[k] < -clamp ? -clamp : g[k] > clamp ? clamp : g[k]) * scale;
  }
}

template <class T>
void forward(const RnntParams& params, const std::vector<RnntSequence>& sequences, std::vector<Lattice>& lattices,
             void* costs, void* reserve_space) {
  const prnnRNNTLossOptions_t& o = params.options;
  const Reserve<T> reserve(params, reserve_space);
  for_each_sequence(
      o.batch, static_cast<int64_t>(lattices.size()), rnnt_work(params), o.maxFrames,
      [&](int64_t n) { return sequences[n].frames; },
      [&](int64_t n, int64_t slot) { set_up_lattice(lattices[slot], o, sequences[n]); },
      [&](int64_t n, int64_t t, int64_t slot) {
        fill_frame<T>(lattices[slot], params, sequences[n], t, reserve_space ? reserve.norms : nullptr);
      },
      [&](int64_t n, int64_t slot) {
        Lattice& lattice = lattices[slot];
        const double total = lattice.sum_paths();
        const bool no_path = total == -std::numeric_limits<double>::infinity();
        static_cast<T*>(costs)[n] = no_path && o.zeroInfinity ? T(0) : static_cast<T>(0 - total);
        if (!reserve_space) return;
        lattice.share(total);
        for (int64_t t = 0; t < sequences[n].frames; ++t) keep_shares(lattice, o, sequences[n], t, reserve.shares);
      });
}

template <class T>
void backward(const RnntParams& params, const std::vector<RnntSequence>& sequences, const void* given_gradients,
              void* gradients, const void* reserve_space) {
  const prnnRNNTLossOptions_t& o = params.options;
  const Reserve<T> reserve(params, const_cast<void*>(reserve_space));
  const CostGradients<T> scales = cost_gradients<T>(o, given_gradients);
  const T* x = static_cast<const T*>(params.activations);
  T* g = static_cast<T*>(gradients);
  const int64_t classes = o.classes;
  const int64_t packed_rows = sequences.back().first_row + sequences.back().frames * sequences.back().frame_rows;

#pragma omp parallel for collapse(2) schedule(dynamic, 8) \
    num_threads(region_threads(rnnt_work(params) >= kWorkForThreads))
  for (int64_t n = 0; n < o.batch; ++n) {
    for (int64_t t = 0; t < o.maxFrames; ++t) {
      const RnntSequence& s = sequences[n];
      const bool real = t < s.frames;
      if (o.layout == PRNN_RNNT_PACKED && !real) continue;
      const T scale = scales(n);
      const int64_t begin = s.first_row + t * s.frame_rows;
      const int64_t cells = real ? std::max<int64_t>(0, s.end(t) - s.first(t)) : 0;
      for (int64_t i = 0; i < cells; ++i) {
        const int64_t row = begin + i, u = s.first(t) + i;
        const int64_t label = u == s.symbols ? -1 : s.targets ? s.targets[u] : 1;
        cell_gradient(params, x + row * classes, reserve.norms + 2 * row, reserve.shares + 2 * row, label, scale,
                      g + row * classes);
      }
      std::fill_n(g + (begin + cells) * classes, (s.frame_rows - cells) * classes, T(0));
    }
  }
  if (o.layout == PRNN_RNNT_PACKED) std::fill(g + packed_rows * classes, g + o.rows * classes, T(0));
}

}  // namespace

size_t rnnt_loss_reserve_size_cpu(const prnnRNNTLossOptions_t& options) {
  RnntParams params{};
  params.options = options;
  const size_t element = options.dataType == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
  return element * static_cast<size_t>(params.rows()) * (options.input == PRNN_LOSS_LOGITS ? 4 : 2);
}

size_t rnnt_lattices_size_cpu(const prnnRNNTLossOptions_t& options) {
  return slots_size(Lattice::scratch_size(max_steps(options), max_width(options)), options.batch);
}

void run_rnnt_loss_cpu(const RnntParams& params, void* costs, void* gradients, void* reserve) {
  const std::vector<RnntSequence> sequences = rnnt_sequences(params);
  std::vector<Lattice> lattices = rnnt_lattices(params);
  const auto run = [&](auto real) {
    using T = decltype(real);
    forward<T>(params, sequences, lattices, costs, reserve);
    reduce_costs(reduced_costs<T>(params.options, costs));
    if (gradients) backward<T>(params, sequences, nullptr, gradients, reserve);
  };
  params.options.dataType == PRNN_DATA_DOUBLE ? run(double()) : run(float());
}

void run_rnnt_loss_backward_cpu(const RnntParams& params, const void* cost_gradients, void* gradients,
                                const void* reserve) {
  const auto run = params.options.dataType == PRNN_DATA_DOUBLE ? backward<double> : backward<float>;
  run(params, rnnt_sequences(params), cost_gradients, gradients, reserve);
}

}  // namespace prnn
