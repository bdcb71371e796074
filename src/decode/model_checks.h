// Checks of a transducer and of what is searched, for every kind of search.
#pragma once

#include "decode/checks.h"
#include "decode/decode.h"

namespace prnn {

constexpr int64_t kMost = std::numeric_limits<int>::max();

// Checks handle and model. Returns the backend for a call with them.
const DecodeBackend& checked_backend(prnnHandle_t handle, const TransducerModel* model);

void check_search_sizes(const TransducerModel& model, int64_t batch, int64_t beam, int64_t max_frames,
                        int64_t max_symbols);

void check_inputs(prnnHandle_t handle, const TransducerModel& model, int64_t batch, int64_t max_frames,
                  const prnnTransducerInputs_t* inputs);

inline size_t compute_size(const TransducerModel& m) {
  return m.dataType == PRNN_DATA_DOUBLE ? sizeof(double) : sizeof(float);
}

// Checks of one state on the host, which is the `slot`-th of its pool.
inline void check_context(const TransducerModel& m, const int* context, int64_t slot) {
  for (int64_t i = 0; i < m.context; ++i) {
    if (context[i] < 0 || context[i] >= m.classes)
      fail(PRNN_STATUS_BAD_PARAM, "state->context of slot %" PRId64 " holds %d; it must be 0 to %" PRId64, slot,
           context[i], m.classes - 1);
  }
}
inline void check_node(const prnnTransducerBias_t& bias, int node, int64_t slot) {
  if (node < 0 || node >= bias.nodes)
    fail(PRNN_STATUS_BAD_PARAM, "state->node of slot %" PRId64 " is %d; it must be 0 to %" PRId64, slot, node,
         bias.nodes - 1);
}

// The slot of an utterance, from NULL or an array that is on the host.
inline int64_t checked_slot(const int* slots, int64_t n) {
  if (slots == nullptr) return n;
  if (slots[n] < 0) fail(PRNN_STATUS_BAD_PARAM, "state->slots[%" PRId64 "] is %d; it must be at least 0", n, slots[n]);
  return slots[n];
}

// The arrays that states of every search have.
template <class State>
void check_state_arrays(const TransducerModel& m, const State& state, const prnnTransducerBias_t* bias) {
  require_not_null(state.ahead, "state->ahead");
  require_only_if(is_recurrent(m), state.h, "state->h", "with a STATELESS predictor");
  require_only_if(m.predictor == PRNN_PREDICTOR_LSTM, state.c, "state->c", "unless the predictor is LSTM");
  require_only_if(!is_recurrent(m), state.context, "state->context", "unless the predictor is STATELESS");
  require_only_if(bias != nullptr, state.node, "state->node", "without a bias");
  require_aligned(type_size(m.dataType), {{state.h, "state->h"}});
  require_aligned(compute_size(m), {{state.c, "state->c"}});
  require_aligned(sizeof(int), {{state.slots, "state->slots"},
                                {state.ahead, "state->ahead"},
                                {state.context, "state->context"},
                                {state.node, "state->node"}});
  require_aligned(sizeof(double), {{state.score, "state->score"}});
}

}  // namespace prnn
