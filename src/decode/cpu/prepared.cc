#include "decode/cpu/prepared.h"

namespace prnn {
namespace {

int64_t embedding_elements(const TransducerModel& m) {
  return is_recurrent(m) ? m.classes * m.embeddingSize : m.context * m.classes * m.hiddenSize;
}

bool has_layer(const TransducerModel& m, int64_t layer) { return is_recurrent(m) && layer < m.layers; }

LayerShape layer_shape(const TransducerModel& m, int64_t layer) {
  const int64_t hidden = has_layer(m, layer) ? m.hiddenSize : 0;
  return {m.predictor == PRNN_PREDICTOR_GRU ? PRNN_GRU : PRNN_LSTM, layer == 0 ? m.embeddingSize : hidden, hidden, 0};
}

}  // namespace

template <class T>
PreparedTransducer<T>::PreparedTransducer(const TransducerModel& m, void* base)
    : arena(base),
      has_encoder(arena.take<int>(1)),
      encoder_panels(take_panels<T>(arena, m.joinerSize, m.encoderSize)),
      encoder_bias(arena.take<T>(m.joinerSize)),
      embedding(arena.take<T>(embedding_elements(m))),
      layers{PreparedLayer<T>(arena, layer_shape(m, 0)), PreparedLayer<T>(arena, layer_shape(m, 1))},
      predictor_panels(take_panels<T>(arena, m.joinerSize, m.hiddenSize)),
      predictor_bias(arena.take<T>(m.joinerSize)),
      output_panels(take_panels<T>(arena, output_rows(m), m.joinerSize)),
      output_bias(arena.take<T>(output_rows(m))) {}

template <class T>
void PreparedTransducer<T>::write(const TransducerModel& m, const prnnTransducerWeights_t& w) {
  *has_encoder = w.encoderWeight != nullptr;
  if (*has_encoder) {
    pack(w.encoderWeight, m.joinerSize, m.encoderSize, encoder_panels);
    copy_or_zeros(w.encoderBias, m.joinerSize, encoder_bias);
  }
  std::copy_n(static_cast<const T*>(w.embedding), embedding_elements(m), embedding);
  for (int64_t i = 0; has_layer(m, i); ++i) {
    layers[i].write({w.inputWeights[i], w.recurrentWeights[i], w.inputBiases[i], w.recurrentBiases[i], nullptr});
  }
  pack(w.predictorWeight, m.joinerSize, m.hiddenSize, predictor_panels);
  copy_or_zeros(w.predictorBias, m.joinerSize, predictor_bias);
  pack(w.outputWeight, output_rows(m), m.joinerSize, output_panels);
  copy_or_zeros(w.outputBias, output_rows(m), output_bias);
}

template struct PreparedTransducer<float>;
template struct PreparedTransducer<double>;

}  // namespace prnn
