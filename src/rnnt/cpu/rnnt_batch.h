// Where a batch's lattice cells lie, and the lattices of its sequences; shared by the RNN-T loss and alignment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/cpu/loss_kernels.h"
#include "core/cpu/loss_schedule.h"
#include "rnnt/cpu/lattice.h"
#include "rnnt/rnnt.h"

namespace prnn {

// One sequence of a batch.
struct RnntSequence {
  int64_t frames, symbols;  // T_n, U_n
  int64_t first_row;        // row of cell (0, 0); PRUNED: of frame 0's first cell
  int64_t frame_rows;       // rows from one frame to the next
  const int* targets;       // its own symbols, NULL for GATHERED
  const int* begins;        // PRUNED: first cell of each frame; else NULL
  int64_t range;            // PRUNED: cells in a frame

  // The cells of frame t: u = first(t) .. end(t) - 1.
  int64_t first(int64_t t) const { return begins ? begins[t] : 0; }
  int64_t end(int64_t t) const { return begins ? std::min(begins[t] + range, symbols + 1) : symbols + 1; }
  int64_t row(int64_t t, int64_t u) const { return first_row + t * frame_rows + u - first(t); }
};

std::vector<RnntSequence> rnnt_sequences(const RnntParams& params);

// Elements that a call reads, and nodes that it computes, as elements.
inline int64_t rnnt_work(const RnntParams& params) { return params.rows() * (params.options.classes + 32); }

// Steps and nodes in a step of the largest lattice that the options allow.
inline int64_t max_steps(const prnnRNNTLossOptions_t& o) {
  return o.type == PRNN_RNNT_REGULAR ? o.maxFrames + o.maxTargets : o.maxFrames;
}
inline int64_t max_width(const prnnRNNTLossOptions_t& o) {
  return o.layout == PRNN_RNNT_PRUNED ? o.pruneRange : o.maxTargets + 1;
}

inline void set_up_lattice(Lattice& lattice, const prnnRNNTLossOptions_t& o, const RnntSequence& s) {
  const bool regular = o.type == PRNN_RNNT_REGULAR;
  if (s.begins) {
    lattice.set_pruned(regular, s.frames, s.symbols, s.begins, s.range);
  } else {
    lattice.set_full(regular, s.frames, s.frames, s.symbols);
  }
}

// One lattice for each slot of the workspace.
std::vector<Lattice> rnnt_lattices(const RnntParams& params);

// Fills in the arcs of frame t from the activations. norms: {rows, 2}, receives each cell's log-normaliser in two parts
// when the activations are logits; may be NULL.
template <class T>
void fill_frame(Lattice& lattice, const RnntParams& params, const RnntSequence& s, int64_t t, T* norms);

extern template void fill_frame<float>(Lattice&, const RnntParams&, const RnntSequence&, int64_t, float*);
extern template void fill_frame<double>(Lattice&, const RnntParams&, const RnntSequence&, int64_t, double*);

}  // namespace prnn
