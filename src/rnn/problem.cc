#include "rnn/problem.h"

#include <tuple>

namespace prnn {
namespace {

auto fields_of(const prnnRNNPlan_t& p) {
  const auto& [engine, units, cluster, replicas, delay] = p;
  return std::tie(engine, units, cluster, replicas, delay);
}
auto fields_of(const prnnRNNExtras_t& e) {
  const auto& [reset, cells, dcells, reset_hx, reset_cx, dreset_hx, dreset_cx] = e;
  return std::tie(reset, cells, dcells, reset_hx, reset_cx, dreset_hx, dreset_cx);
}
auto fields_of(const prnnRNNMasks_t& m) {
  const auto& [recurrent, zoneout, expectation] = m;
  return std::tie(recurrent, zoneout, expectation);
}

}  // namespace

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
  add(takes_gates(), Needs::kLstmOfGates);
  add(forward_plan.engine != PRNN_ENGINE_BEST || backward_plan.engine != PRNN_ENGINE_BEST, Needs::kChosenSplit);
  return bits;
}

// With all members by name: one that is added to the struct does not compile here.
bool operator==(const RnnProblem& a, const RnnProblem& b) {
  const auto fields = [](const RnnProblem& p) {
    const auto& [mode, type, hidden, heads, projection, input, layers, directions, frozen, skip_input, gates_input,
                 reverse, normalize, epsilon, tf32, forward_plan, backward_plan, dropout, training, extras, masks,
                 aligned, gives_dx, batch, rows] = p;
    return std::tuple_cat(std::tie(mode, type, hidden, heads, projection, input, layers, directions, frozen, skip_input,
                                   gates_input, reverse, normalize, epsilon, tf32, dropout.probability, dropout.states,
                                   training, aligned, gives_dx, rows, batch),
                          fields_of(forward_plan), fields_of(backward_plan), fields_of(extras), fields_of(masks));
  };
  return fields(a) == fields(b);
}

}  // namespace prnn
