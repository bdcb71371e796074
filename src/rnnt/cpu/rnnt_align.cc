#include "rnnt/cpu/rnnt_batch.h"
#include "rnnt/cpu/rnnt_loss.h"

namespace prnn {
namespace {

template <class T>
void align(const RnntParams& params, void* scores, int* frames) {
  const prnnRNNTLossOptions_t& o = params.options;
  const std::vector<RnntSequence> sequences = rnnt_sequences(params);
  std::vector<Lattice> lattices = rnnt_lattices(params);
  for_each_sequence(
      o.batch, static_cast<int64_t>(lattices.size()), rnnt_work(params), o.maxFrames,
      [&](int64_t n) { return sequences[n].frames; },
      [&](int64_t n, int64_t slot) { set_up_lattice(lattices[slot], o, sequences[n]); },
      [&](int64_t n, int64_t t, int64_t slot) { fill_frame<T>(lattices[slot], params, sequences[n], t, nullptr); },
      [&](int64_t n, int64_t slot) {
        const int64_t symbols = sequences[n].symbols;
        int* times = frames + n * o.maxTargets;
        static_cast<T*>(scores)[n] = static_cast<T>(lattices[slot].best_path(symbols, times));
        std::fill(times + symbols, times + o.maxTargets, -1);
      });
}

}  // namespace

void run_rnnt_align_cpu(const RnntParams& params, void* scores, int* frames) {
  params.options.dataType == PRNN_DATA_DOUBLE ? align<double>(params, scores, frames)
                                              : align<float>(params, scores, frames);
}

}  // namespace prnn
