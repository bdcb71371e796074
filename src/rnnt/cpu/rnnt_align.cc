#include <vector>

#include "rnnt/cpu/rnnt_batch.h"
#include "rnnt/cpu/rnnt_loss.h"

namespace prnn {
namespace {

template <class T>
void align(const RnntParams& params, void* scores, int* frames) {
  const prnnRNNTLossOptions_t& o = params.options;
  const size_t slot_size = Lattice::scratch_size(max_steps(o), max_width(o));
  const int64_t slots = lattices_at_once(o.batch, params.workspace_size, slot_size);
  RnntSequences sequences(params);
  std::vector<RnntSequence> sequence(o.batch);
  for (RnntSequence& s : sequence) s = sequences.next();

#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(slots))
  for (int64_t slot = 0; slot < slots; ++slot) {
    Lattice lattice(static_cast<char*>(params.workspace) + slot * slot_size, max_steps(o), max_width(o));
    for (int64_t n = slot; n < o.batch; n += slots) {
      const RnntSequence& s = sequence[n];
      set_up_lattice(lattice, o, s);
      for (int64_t t = 0; t < s.frames; ++t) fill_frame<T>(lattice, params, s, t, nullptr);
      int* times = frames + n * o.maxTargets;
      static_cast<T*>(scores)[n] = static_cast<T>(lattice.best_path(s.symbols, times));
      std::fill(times + s.symbols, times + o.maxTargets, -1);
    }
  }
}

}  // namespace

void run_rnnt_align_cpu(const RnntParams& params, void* scores, int* frames) {
  params.options.dataType == PRNN_DATA_DOUBLE ? align<double>(params, scores, frames)
                                              : align<float>(params, scores, frames);
}

}  // namespace prnn
