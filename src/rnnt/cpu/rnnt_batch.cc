#include "rnnt/cpu/rnnt_batch.h"

#include <limits>

namespace prnn {

std::vector<RnntSequence> rnnt_sequences(const RnntParams& params) {
  const prnnRNNTLossOptions_t& o = params.options;
  std::vector<RnntSequence> sequences(o.batch);
  const int* targets = o.input == PRNN_LOSS_GATHERED ? nullptr : params.targets;
  int64_t row = 0;
  for (int64_t n = 0; n < o.batch; ++n) {
    RnntSequence& s = sequences[n];
    s.frames = params.frame_lengths[n];
    s.symbols = params.target_lengths[n];
    s.targets = targets;
    s.first_row = row;
    s.frame_rows = o.layout == PRNN_RNNT_PACKED ? s.symbols + 1 : params.cells_per_frame();
    if (o.layout == PRNN_RNNT_PRUNED) {
      s.begins = params.range_begins + n * o.maxFrames;
      s.range = o.pruneRange;
    }
    row += s.frame_rows * (o.layout == PRNN_RNNT_PACKED ? s.frames : o.maxFrames);
    if (targets) targets += o.targetLayout == PRNN_TARGETS_PADDED ? o.maxTargets : s.symbols;
  }
  return sequences;
}

std::vector<Lattice> rnnt_lattices(const RnntParams& params) {
  const prnnRNNTLossOptions_t& o = params.options;
  const size_t slot_size = Lattice::scratch_size(max_steps(o), max_width(o));
  const int64_t slots = slots_of_call(o.batch);
  std::vector<Lattice> lattices;
  for (int64_t slot = 0; slot < slots; ++slot) {
    lattices.emplace_back(static_cast<char*>(params.workspace) + slot * slot_size, max_steps(o), max_width(o));
  }
  return lattices;
}

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
      const bool last = o.type == PRNN_RNNT_FINAL_BLANK && t + 1 == s.frames;
      if (u < s.symbols && !last) label = static_cast<double>(x[gathered ? 1 : s.targets[u]]) - norm + penalty;
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
