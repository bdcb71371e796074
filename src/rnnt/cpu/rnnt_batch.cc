#include "rnnt/cpu/rnnt_batch.h"

#include <limits>

namespace prnn {

template <class T>
void fill_frame(Lattice& lattice, const RnntParams& params, const RnntSequence& s, int64_t t, T* norms) {
  const prnnRNNTLossOptions_t& o = params.options;
  const LossKernels& kernels = loss_kernels();
  const double penalty = o.delayPenalty * (0.5 * static_cast<double>(s.frames - 1) - static_cast<double>(t));
  const int64_t first = s.first(t), end = s.end(t);
  double blank_before = 0;  // constrained: blank(t, u - 1) of the loop below, which runs from high u to low
  for (int64_t u = end - 1; u >= first; --u) {
    const int64_t step = lattice.step(t, u);
    const bool constrained = o.type == PRNN_RNNT_CONSTRAINED;
    // A node from which no path leads to the end is not in the lattice; its blank may still be wanted below it.
    const bool inside = lattice.has(step, u);
    if (!inside && !constrained) continue;
    const int64_t row = s.row(t, u);
    const T* x = static_cast<const T*>(params.activations) + row * o.classes;
    double norm = 0;
    if (o.input == PRNN_LOSS_LOGITS) {
      T maximum;
      double log_sum;
      log_normaliser(kernels, x, o.classes, &maximum, &log_sum);
      if (norms) {
        norms[2 * row] = maximum;
        norms[2 * row + 1] = static_cast<T>(log_sum);
      }
      norm = static_cast<double>(maximum) + log_sum;
    }
    const bool gathered = o.input == PRNN_LOSS_GATHERED;
    const double blank = static_cast<double>(x[gathered ? 0 : o.blank]) - norm;
    if (inside) {
      lattice.blank(step, u) = blank;
      double label = -std::numeric_limits<double>::infinity();
      if (u < s.symbols) label = static_cast<double>(x[gathered ? 1 : s.targets[u]]) - norm + penalty;
      if (constrained && u < s.symbols) {
        // Without the next cell (pruned away) there is no blank to follow the symbol.
        label = u + 1 < end ? label + blank_before : -std::numeric_limits<double>::infinity();
      }
      lattice.label(step, u) = label;
    }
    blank_before = blank;
  }
}

template void fill_frame<float>(Lattice&, const RnntParams&, const RnntSequence&, int64_t, float*);
template void fill_frame<double>(Lattice&, const RnntParams&, const RnntSequence&, int64_t, double*);

}  // namespace prnn
