#include "decode/cpu/layer.h"

#include <algorithm>

#include "rnn/cpu/cells.h"

namespace prnn {
namespace {

constexpr int64_t kMostWidth = 128;  // bytes of a panel's width

}  // namespace

template <class T>
void multiply_rows(const T* a, int64_t rows, int64_t k, const T* panels, const T* bias, int64_t columns, T* c,
                   char* scratch) {
  Gemm<T> gemm;
  gemm.m = rows;
  gemm.n = gemm.ldc = columns;
  gemm.k = gemm.lda = k;
  gemm.a = a;
  gemm.panels = panels;
  gemm.c = c;
  gemm.bias = bias;
  gemm_kernels<T>().gemm(gemm, {0, rows}, {0, columns}, scratch);
}

template <class T>
void pack(const void* matrix, int64_t rows, int64_t k, T* panels) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  for (int64_t row = 0; row < rows; row += kernels.width) {
    kernels.pack_rows(static_cast<const T*>(matrix) + row * k, k, std::min(kernels.width, rows - row), k,
                      panels + row * k);
  }
}

template <class T>
void copy_or_zeros(const void* from, int64_t count, T* to) {
  from != nullptr ? std::copy_n(static_cast<const T*>(from), count, to) : std::fill_n(to, count, T(0));
}

template <class T>
PreparedLayer<T>::PreparedLayer(Arena& arena, const LayerShape& layer)
    : shape(layer),
      input_panels(take_panels<T>(arena, layer.gates() * layer.hidden, layer.input)),
      recurrent(take_panels<T>(arena, layer.hidden, layer.gates() * layer.state())),
      projection_panels(take_panels<T>(arena, layer.projection, layer.hidden)),
      gate_bias(arena.take<T>(layer.gates() * layer.hidden)),
      candidate_bias(arena.take<T>(layer.hidden)) {}

template <class T>
void PreparedLayer<T>::write(const LayerWeights& weights) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const int64_t H = shape.hidden, P = shape.state(), G = shape.gates();
  pack(weights.input, G * H, shape.input, input_panels);
  T* panels = recurrent;
  for (int64_t unit = 0; unit < H; unit += kernels.width) {
    for (int64_t gate = 0; gate < G; ++gate) {
      kernels.pack_rows(static_cast<const T*>(weights.recurrent) + (gate * H + unit) * P, P,
                        std::min(kernels.width, H - unit), P, panels);
      panels += kernels.width * P;
    }
  }
  if (shape.projection > 0) pack(weights.projection, P, H, projection_panels);
  copy_or_zeros(weights.input_bias, G * H, gate_bias);
  std::fill_n(candidate_bias, H, T(0));
  const T* const bias = static_cast<const T*>(weights.recurrent_bias);
  if (bias == nullptr) return;
  const bool is_gru = shape.mode == PRNN_GRU;
  for (int64_t i = 0; i < (is_gru ? 2 : 4) * H; ++i) gate_bias[i] += bias[i];
  if (is_gru) std::copy_n(bias + 2 * H, H, candidate_bias);
}

template <class T>
void PreparedLayer<T>::multiply_input(const T* input, int64_t rows, T* gates, char* scratch) const {
  multiply_rows(input, rows, shape.input, input_panels, gate_bias, shape.gates() * shape.hidden, gates, scratch);
}

template <class T>
void PreparedLayer<T>::step(const T* h_prev, int64_t n, T* gates, T* c, T* unprojected, T* h) const {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const int64_t H = shape.hidden, P = shape.state(), G = shape.gates(), width = kernels.width;
  const int64_t blocks = (H + width - 1) / width, together = std::max<int64_t>(kernels.most_panels / G, 1);
  alignas(64) char scratch[kMostPanels * kLanes * kMostWidth];
  T* const product = reinterpret_cast<T*>(scratch);
  ForwardCell<T> cell;
  cell.n = n;
  cell.hidden = H;
  cell.ld_h_prev = P;
  cell.ld_h = H;
  cell.product_stride = n * width;
  const auto forward = cell_kernels<T>().forward[shape.mode];
  T* const out = shape.projection > 0 ? unprojected : h;
  for (int64_t first = 0; first < blocks; first += together) {
    const int64_t count = std::min(together, blocks - first), next = first + count;
    const T* const panels = recurrent + first * G * width * P;
    kernels.product(panels, count * G, std::min(width, H - first * width), P, h_prev, P, n, product,
                    next < blocks ? recurrent + next * G * width * P : nullptr);
    for (int64_t block = 0; block < count; ++block) {
      const int64_t unit = (first + block) * width;
      cell.units = std::min(width, H - unit);
      cell.product = product + block * G * n * width;
      cell.gates = gates + unit;
      cell.recurrent_bias = candidate_bias + unit;
      cell.h_prev = h_prev + unit;
      cell.h = out + unit;
      cell.c_prev = cell.c = c == nullptr ? nullptr : c + unit;
      forward(cell);
    }
  }
  for (int64_t unit = 0; unit < shape.projection; unit += width) {
    const int64_t rows = std::min(width, shape.projection - unit);
    kernels.product(projection_panels + unit * H, 1, rows, H, unprojected, H, n, product,
                    unit + width < shape.projection ? projection_panels + (unit + width) * H : nullptr);
    for (int64_t j = 0; j < n; ++j) std::copy_n(product + j * width, rows, h + j * P + unit);
  }
}

template void multiply_rows(const float*, int64_t, int64_t, const float*, const float*, int64_t, float*, char*);
template void multiply_rows(const double*, int64_t, int64_t, const double*, const double*, int64_t, double*, char*);
template void pack(const void*, int64_t, int64_t, float*);
template void pack(const void*, int64_t, int64_t, double*);
template void copy_or_zeros(const void*, int64_t, float*);
template void copy_or_zeros(const void*, int64_t, double*);
template struct PreparedLayer<float>;
template struct PreparedLayer<double>;

}  // namespace prnn
