// The seam between the API of the transducers with durations and what computes them: the API layer validates a call and
// fills in DurationParams; a backend (cpu/, cuda/) answers sizes and runs. Backends do not validate sizes or options.
#pragma once

#include <cstddef>

#include "core/handle.h"
#include "prnn_losses.h"

namespace prnn {

// One kind of arc that every node (t, u) has: a label to (t + duration, u + 1) or a blank to (t + duration, u). It
// scores log P(its token) - sigma, and log P(its duration) if it has one.
struct DurationArc {
  int duration;  // of those beyond maxFrames always maxFrames + 1
  int blank;     // the class options.blank - this; -1: the next target symbol, a label
  int entry;     // which duration logit; -1: none
  double sigma;

  constexpr bool label() const { return blank < 0; }
  constexpr int step() const { return duration + (label() ? 1 : 0); }  // along t + u
};

// The lattices of a call: TDT or multi-blank, and with omega regular RNN-T besides. Each has a run of the arcs.
struct DurationArcs {
  static constexpr int kMaxArcs = 2 * PRNN_MAX_DURATIONS + 2;
  static constexpr int kMaxSlots = 2 * PRNN_MAX_DURATIONS + 2;

  struct Lattice {
    int begin, end;
    double weight;  // of its cost and gradients
  };

  DurationArc arc[kMaxArcs];
  Lattice lattice[2];
  int lattices;
  int blanks, entries;  // kinds of blanks; duration logits
  int longest;          // duration of an arc

  explicit DurationArcs(const prnnDurationRNNTLossOptions_t& options);

  constexpr int count() const { return lattice[lattices - 1].end; }

  // The number of slots on which a cell's gradients depend, one for each of its logits that arcs have a share in: slot
  // 0 is the next target symbol, 1 + i blank i, and after them the duration logits.
  constexpr int slots() const { return 1 + blanks + entries; }
  constexpr int token_slot(const DurationArc& a) const { return a.blank + 1; }
  constexpr int entry_slot(const DurationArc& a) const { return 1 + blanks + a.entry; }

  // Whether the arc goes from (t, u) to a node from which the end can be reached, in a sequence of these lengths.
  static constexpr bool leads_on(const DurationArc& a, int64_t t, int64_t u, int64_t frames, int64_t symbols) {
    const int64_t to = t + a.duration;
    return a.label() ? u < symbols && to < frames : to < frames || (to == frames && u == symbols);
  }
};

// Pointers as prnn_losses.h describes them. NULL where the call does not have them. The options' strides are not 0.
struct DurationParams {
  prnnDurationRNNTLossOptions_t options;
  const void* tokens;
  const void* durations;
  const int* targets;
  const int* frame_lengths;
  const int* target_lengths;
  void* workspace;

  int64_t cells() const { return options.batch * options.maxFrames * (options.maxTargets + 1); }
};

class DurationBackend {
 public:
  virtual ~DurationBackend() = default;
  virtual void require_supported(prnnDataType_t) const = 0;  // or throws NOT_SUPPORTED
  virtual size_t workspace_size(const prnnDurationRNNTLossOptions_t&) const = 0;
  virtual size_t reserve_size(const prnnDurationRNNTLossOptions_t&) const = 0;
  virtual void forward(prnnHandle_t, const DurationParams&, void* costs, void* reserve) const = 0;
  virtual void backward(prnnHandle_t, const DurationParams&, const void* cost_gradients, void* token_gradients,
                        void* duration_gradients, const void* reserve) const = 0;
};

// Throws BAD_PARAM unless durationCount, durations, sigma and omega are as prnn_losses.h wants them for the type.
void require_durations(const prnnDurationRNNTLossOptions_t& options);

const DurationBackend& cpu_duration_backend();   // src/rnnt/cpu/
const DurationBackend& cuda_duration_backend();  // src/rnnt/cuda/

}  // namespace prnn
