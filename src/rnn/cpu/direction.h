// The arrays of one direction of one layer that both the forward pass and that of the data's gradients read.
#pragma once

#include <array>
#include <vector>

#include "core/cpu/half.h"
#include "rnn/cpu/steps.h"
#include "rnn/problem.h"

namespace prnn {

// One direction of one layer, or a head of one: `index` is RnnProblem's recurrence. S: the type of the weights.
template <class S>
struct DirectionData {
  using T = Compute<S>;

  int64_t layer, index;
  const Step* steps;
  const S *input_weights, *recurrent_weights, *projection_weights;  // NULL where the layer has none
  const T *hx, *cx;                                                 // [N][P], [N][H]; sLSTM: [3][N][H]
  const T *reset_hx, *reset_cx;                                     // the same
  const T* mask;                                                    // [N][H] or NULL: prnnRNNMasks_t::recurrent

  // zeros: in the place of states that are NULL. w, hx, cx: of all layers.
  DirectionData(const RnnProblem& p, const std::array<std::vector<Step>, 2>& all_steps, int64_t of_layer,
                int64_t recurrence, const void* w, const void* all_hx, const void* all_cx, const T* zeros)
      : layer(of_layer), index(recurrence), steps(all_steps[p.direction_of(recurrence)].data()) {
    const RnnLayerOffsets offsets = rnn_layer_offsets(p, layer, index);
    const auto weights = [&](int64_t offset) { return offset < 0 ? nullptr : static_cast<const S*>(w) + offset; };
    input_weights = weights(offsets.input);
    recurrent_weights = weights(offsets.recurrent);
    projection_weights = weights(offsets.projection);
    const auto states = [&](const void* all, int64_t at) {
      return all == nullptr ? zeros : static_cast<const T*>(all) + at;
    };
    hx = states(all_hx, first_state(p));
    cx = states(all_cx, first_cell(p));
    reset_hx = states(p.extras.resetHx, first_state(p));
    reset_cx = states(p.extras.resetCx, first_cell(p));
    const auto* masks = static_cast<const T*>(p.masks.recurrent);
    mask = masks == nullptr ? nullptr : masks + first_state(p);
  }

  // The elements of hx and cx, and of their like, that belong to the direction begin here.
  int64_t first_state(const RnnProblem& p) const { return number(p) * p.max_batch() * p.state(); }
  int64_t first_cell(const RnnProblem& p) const { return number(p) * p.cell_states() * p.max_batch() * p.hidden; }

 private:
  int64_t number(const RnnProblem& p) const { return layer * p.recurrences() + index; }
};

}  // namespace prnn
