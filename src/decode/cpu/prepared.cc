#include "decode/cpu/prepared.h"

namespace prnn {
namespace {

int64_t embedding_elements(const TransducerModel& m) {
  return is_recurrent(m) ? m.classes * m.embeddingSize : m.context * m.classes * m.hiddenSize;
}

bool has_layer(const TransducerModel& m, int64_t layer) { return is_recurrent(m) && layer < m.layers; }

template <class T>
void pack(const void* matrix, int64_t rows, int64_t k, T* panels) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  for (int64_t row = 0; row < rows; row += kernels.width) {
    kernels.pack_rows(static_cast<const T*>(matrix) + row * k, k, std::min(kernels.width, rows - row), k,
                      panels + row * k);
  }
}

template <class T>
void pack_recurrent(const TransducerModel& m, const void* matrix, T* panels) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const int64_t H = m.hiddenSize, G = gate_count(m);
  for (int64_t unit = 0; unit < H; unit += kernels.width) {
    for (int64_t gate = 0; gate < G; ++gate) {
      kernels.pack_rows(static_cast<const T*>(matrix) + (gate * H + unit) * H, H, std::min(kernels.width, H - unit), H,
                        panels);
      panels += kernels.width * H;
    }
  }
}

template <class T>
void copy_or_zeros(const void* from, int64_t count, T* to) {
  from != nullptr ? std::copy_n(static_cast<const T*>(from), count, to) : std::fill_n(to, count, T(0));
}

template <class T>
void write_layer(const TransducerModel& m, const prnnTransducerWeights_t& w, int64_t layer, PreparedLayer<T>& to) {
  const int64_t H = m.hiddenSize, G = gate_count(m);
  pack(w.inputWeights[layer], G * H, to.input, to.input_panels);
  pack_recurrent(m, w.recurrentWeights[layer], to.recurrent);
  copy_or_zeros(w.inputBiases[layer], G * H, to.gate_bias);
  std::fill_n(to.candidate_bias, H, T(0));
  const T* const bias = static_cast<const T*>(w.recurrentBiases[layer]);
  if (bias == nullptr) return;
  const bool is_gru = m.predictor == PRNN_PREDICTOR_GRU;
  for (int64_t i = 0; i < (is_gru ? 2 : 4) * H; ++i) to.gate_bias[i] += bias[i];
  if (is_gru) std::copy_n(bias + 2 * H, H, to.candidate_bias);
}

}  // namespace

template <class T>
PreparedLayer<T>::PreparedLayer(Arena& arena, const TransducerModel& m, int64_t layer)
    : input(layer == 0 ? m.embeddingSize : m.hiddenSize) {
  const int64_t H = has_layer(m, layer) ? m.hiddenSize : 0, G = gate_count(m);
  input_panels = take_panels<T>(arena, G * H, input);
  recurrent = take_panels<T>(arena, H, G * H);
  gate_bias = arena.take<T>(G * H);
  candidate_bias = arena.take<T>(H);
}

template <class T>
PreparedTransducer<T>::PreparedTransducer(const TransducerModel& m, void* base)
    : arena(base),
      has_encoder(arena.take<int>(1)),
      encoder_panels(take_panels<T>(arena, m.joinerSize, m.encoderSize)),
      encoder_bias(arena.take<T>(m.joinerSize)),
      embedding(arena.take<T>(embedding_elements(m))),
      layers{PreparedLayer<T>(arena, m, 0), PreparedLayer<T>(arena, m, 1)},
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
  for (int64_t layer = 0; has_layer(m, layer); ++layer) write_layer(m, w, layer, layers[layer]);
  pack(w.predictorWeight, m.joinerSize, m.hiddenSize, predictor_panels);
  copy_or_zeros(w.predictorBias, m.joinerSize, predictor_bias);
  pack(w.outputWeight, output_rows(m), m.joinerSize, output_panels);
  copy_or_zeros(w.outputBias, output_rows(m), output_bias);
}

template struct PreparedLayer<float>;
template struct PreparedLayer<double>;
template struct PreparedTransducer<float>;
template struct PreparedTransducer<double>;

}  // namespace prnn
