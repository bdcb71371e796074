#include "decode/cpu/predictor.h"

namespace prnn {

template <class T>
PredictorSteps<T>::PredictorSteps(Arena& arena, const TransducerModel& m, const PreparedTransducer<T>& prepared)
    : m_(m), prepared_(prepared) {
  const int64_t layer = is_recurrent(m) ? kLanes * m.hiddenSize : 0;
  input_ = arena.take<T>(kLanes * std::max(m.hiddenSize, is_recurrent(m) ? m.embeddingSize : 0));
  gates_ = arena.take<T>(gate_count(m) * layer);
  h_prev_ = arena.take<T>(layer);
  h_ = arena.take<T>(layer);
  c_ = arena.take<T>(layer);
  projected_ = arena.take<T>(kLanes * m.joinerSize);
}

template <class T>
int64_t PredictorSteps<T>::projection_stride(const TransducerModel& m) {
  const int64_t width = gemm_kernels<T>().width;
  return (m.joinerSize + width - 1) / width * width;
}

template <class T>
void PredictorSteps<T>::run(const int* symbols, const PredictorState<T>* states, int64_t count, T* const* projections,
                            char* scratch) const {
  const int64_t H = m_.hiddenSize, J = m_.joinerSize, I = m_.embeddingSize;
  if (is_recurrent(m_)) {
    const PredictorState<T>* stepping[kLanes];
    int64_t steps = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (symbols[i] < 0) continue;
      std::copy_n(prepared_.embedding + symbols[i] * I, I, input_ + steps * I);
      stepping[steps++] = &states[i];
    }
    for (int64_t layer = 0; steps > 0 && layer < m_.layers; ++layer) run_layer(layer, stepping, steps, scratch);
    for (int64_t i = 0; i < count; ++i) std::copy_n(states[i].h + (m_.layers - 1) * H, H, input_ + i * H);
  } else {
    for (int64_t i = 0; i < count; ++i) {
      int* const context = states[i].context;
      if (symbols[i] >= 0) {
        std::copy(context + 1, context + m_.context, context);
        context[m_.context - 1] = symbols[i];
      }
      sum_embeddings(states[i], input_ + i * H);
    }
  }
  multiply_rows(input_, count, H, prepared_.predictor_panels, prepared_.predictor_bias, J, projected_, scratch);
  for (int64_t i = 0; i < count; ++i) std::copy_n(projected_ + i * J, J, projections[i]);
}

template <class T>
void PredictorSteps<T>::run_layer(int64_t layer, const PredictorState<T>* const* states, int64_t count,
                                  char* scratch) const {
  const PreparedLayer<T>& weights = prepared_.layers[layer];
  const int64_t H = m_.hiddenSize;
  const bool is_lstm = m_.predictor == PRNN_PREDICTOR_LSTM;
  weights.multiply_input(input_, count, gates_, scratch);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(states[i]->h + layer * H, H, h_prev_ + i * H);
    if (is_lstm) std::copy_n(states[i]->c + layer * H, H, c_ + i * H);
  }
  weights.step(h_prev_, count, gates_, c_, nullptr, h_);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(h_ + i * H, H, states[i]->h + layer * H);
    if (is_lstm) std::copy_n(c_ + i * H, H, states[i]->c + layer * H);
  }
  std::copy_n(h_, count * H, input_);
}

template <class T>
void PredictorSteps<T>::sum_embeddings(const PredictorState<T>& state, T* out) const {
  const int64_t H = m_.hiddenSize;
  for (int64_t place = 0; place < m_.context; ++place) {
    const T* const row = prepared_.embedding + (place * m_.classes + state.context[place]) * H;
    for (int64_t u = 0; u < H; ++u) out[u] = place == 0 ? row[u] : out[u] + row[u];
  }
  for (int64_t u = 0; m_.predictorRelu != 0 && u < H; ++u) out[u] = out[u] < 0 ? T(0) : out[u];
}

template class PredictorSteps<float>;
template class PredictorSteps<double>;

}  // namespace prnn
