#include "decode/cpu/joint.h"

#include "rnn/cpu/cells.h"

namespace prnn {

// The cells of a plain recurrent layer, of panels of units.
template <class T>
void Joint<T>::activate(const T* x, const T* g, T* out) const {
  const int64_t width = gemm_kernels<T>().width, whole = m_.joinerSize / width;
  ForwardCell<T> cell;
  cell.n = whole;
  cell.units = cell.hidden = cell.ld_h = width;
  cell.gates = const_cast<T*>(x);
  cell.product = g;
  cell.h = out;
  const auto forward = cell_kernels<T>().forward[m_.activation == PRNN_JOINT_TANH ? PRNN_RNN_TANH : PRNN_RNN_RELU];
  if (whole > 0) forward(cell);
  cell.n = 1;
  cell.units = m_.joinerSize - whole * width;
  cell.gates += whole * width;
  cell.product += whole * width;
  cell.h += whole * width;
  if (cell.units > 0) forward(cell);
}

template <class T>
void Joint<T>::score(const T* activations, int64_t rows, T* logits) const {
  multiply_rows(activations, rows, m_.joinerSize, prepared_.output_panels, prepared_.output_bias, output_rows(m_),
                logits, scratch_);
}

template <class T>
Normaliser<T> Joint<T>::normaliser(const T* logits, int64_t count) const {
  Normaliser<T> found;
  log_normaliser(losses_, logits, count, &found.maximum, &found.log_sum);
  return found;
}

// Among the classes on both sides of the blank. That is not the difference to the blank's probability, which could be
// all but 1.
template <class T>
T Joint<T>::confidence(double logit, const T* logits) const {
  Normaliser<T> parts[2];
  const int64_t sizes[2] = {m_.blank, m_.classes - m_.blank - 1};
  const T* const begins[2] = {logits, logits + m_.blank + 1};
  for (int i = 0; i < 2; ++i) {
    parts[i] = {-std::numeric_limits<T>::infinity(), 0};
    if (sizes[i] > 0) parts[i] = normaliser(begins[i], sizes[i]);
    if (std::isinf(parts[i].maximum)) parts[i].log_sum = 0;  // no symbol of this part has a probability
  }
  const double maximum = std::max(parts[0].maximum, parts[1].maximum);
  double sum = 0;
  for (const Normaliser<T>& part : parts) sum += std::exp(part.maximum - maximum + part.log_sum);
  return static_cast<T>(logit - maximum - std::log(sum));
}

template class Joint<float>;
template class Joint<double>;

}  // namespace prnn
