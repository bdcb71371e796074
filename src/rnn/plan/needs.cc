#include "rnn/needs.h"
#include "rnn/problem.h"

namespace prnn {

uint32_t RnnProblem::needs() const {
  const bool is_lstm = mode == PRNN_LSTM, zones_by_mask = masks.zoneout != nullptr;
  uint32_t bits = 0;
  const auto add = [&](bool is_needed, uint32_t need) { bits |= is_needed ? need : 0; };
  add(!batch.empty() && batch.front() != batch.back(), Needs::kLengths);
  add(extras.reset != nullptr, Needs::kReset);
  add(extras.resetHx != nullptr || extras.resetCx != nullptr || extras.dresetHx != nullptr ||
          extras.dresetCx != nullptr,
      Needs::kResetStates);
  add(extras.cells != nullptr, Needs::kCells);
  add(extras.dcells != nullptr, Needs::kDcells);
  add(masks.recurrent != nullptr || masks.zoneoutExpectation > 0 || (is_lstm && zones_by_mask), Needs::kMasks);
  add(!is_lstm && zones_by_mask, Needs::kZoneout);
  add(dropout.probability > 0, Needs::kDropout);
  add(projection > 0, Needs::kProjection);
  add(heads > 1, Needs::kHeads);
  add(directions > 1, Needs::kTwoDirections);
  add(frozen > 0, Needs::kFrozenLayers);
  // With a projection the kernels of several layers read copies in the workspace.
  add(!aligned && projection == 0, Needs::kUnaligned);
  add(skip_input || gates_input, Needs::kSkipInput);
  add(is_slstm(), Needs::kSlstm);
  add(forward_plan.engine != PRNN_ENGINE_BEST || backward_plan.engine != PRNN_ENGINE_BEST, Needs::kChosenSplit);
  return bits;
}

}  // namespace prnn
