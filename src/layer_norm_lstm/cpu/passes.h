// The passes of an LSTM with layer normalisation on the CPU, and their memory. T: float or double.
#pragma once

#include "core/cpu/gemm/gemm.h"
#include "core/cuda/arena.h"
#include "layer_norm_lstm/cpu/kernels.h"
#include "layer_norm_lstm/layer_norm_lstm.h"

namespace prnn {

template <class T>
void layer_norm_lstm_forward_cpu(const LayerNormLstmOptions& options, const LayerNormLstmInputs& inputs,
                                 const LayerNormLstmForwardArgs& args);
template <class T>
void layer_norm_lstm_backward_cpu(const LayerNormLstmOptions& options, const LayerNormLstmInputs& inputs,
                                  const LayerNormLstmBackwardArgs& args);

// The arrays of `rows` rows that forward keeps.
template <class T>
class LayerNormLstmRows {
 public:
  LayerNormLstmRows(Arena& arena, int64_t rows, int64_t hidden)
      : hidden_(hidden),
        gates_(arena.take<T>(rows * 4 * hidden)),
        cell_(arena.take<T>(rows * hidden)),
        c_(arena.take<T>(rows * hidden)),
        deviations_(arena.take<T>(rows * 2)) {}
  LayerNormLstmKept<T> row(int64_t row) const {
    return {gates_ + row * 4 * hidden_, cell_ + row * hidden_, c_ + row * hidden_, deviations_ + row * 2};
  }

 private:
  int64_t hidden_;
  T *gates_, *cell_, *c_, *deviations_;
};

// `rows` of a matrix packed for GemmKernels::product.
template <class T>
T* take_panels(Arena& arena, int64_t rows, int64_t k) {
  const int64_t width = gemm_kernels<T>().width;
  return arena.take<T>((rows + width - 1) / width * width * k);
}

template <class T>
struct LayerNormLstmForwardWorkspace {
  LayerNormLstmForwardWorkspace(const LayerNormLstmOptions& o, void* base)
      : arena(base),
        recurrent(take_panels<T>(arena, 4 * o.hiddenSize, o.hiddenSize)),
        products(arena.take<T>(o.batch * 4 * o.hiddenSize)),
        masked(arena.take<T>(o.batch * o.hiddenSize)),
        zeros(arena.take<T>(o.hiddenSize)),
        rows(arena, o.batch, o.hiddenSize) {}

  Arena arena;
  T* recurrent;               // R
  T* products;                // [N][4 H]: R (m * h_{t-1})
  T* masked;                  // [N][H]: m * h_{t-1}
  T* zeros;                   // [H]
  LayerNormLstmRows<T> rows;  // in inference, of the current timestep
};

template <class T>
struct LayerNormLstmBackwardWorkspace {
  LayerNormLstmBackwardWorkspace(const LayerNormLstmOptions& o, void* base)
      : arena(base),
        recurrent(take_panels<T>(arena, o.hiddenSize, 4 * o.hiddenSize)),
        products(arena.take<T>(o.batch * o.hiddenSize)),
        direct(arena.take<T>(o.batch * o.hiddenSize)),
        dc(arena.take<T>(o.batch * o.hiddenSize)),
        zeros(arena.take<T>(o.hiddenSize)),
        scratch(arena.take<T>(o.batch * 2 * o.hiddenSize)),
        sums(arena.take<T>(o.batch * kLayerNormLstmParameterRows * o.hiddenSize)),
        totals(arena.take<double>(o.batch * kLayerNormLstmParameterRows * o.hiddenSize)),
        h_prev(arena.take<T>(o.steps * o.batch * o.hiddenSize)),
        da(arena.take<T>(o.normalize == PRNN_NORMALIZE_PRODUCTS ? o.steps * o.batch * 4 * o.hiddenSize : 0)) {}

  Arena arena;
  T* recurrent;    // R'
  T* products;     // [N][H]: R' da
  T* direct;       // [N][H]
  T* dc;           // [N][H]
  T* zeros;        // [H]
  T* scratch;      // [N][2 H]
  T* sums;         // [N][kLayerNormLstmParameterRows][H]: of a run of timesteps
  double* totals;  // the same, of the runs before
  T* h_prev;       // [T][N][H]: m * h_{t-1}
  T* da;           // [T][N][4 H]; PRODUCTS alone: else dx is the same
};

// Multiplies a packed matrix of `rows` rows with the vectors b [n][k]: out [n][rows]. The calling thread's share of the
// rows, from the last one on where `downwards`: what the cache still holds of the step before is used first.
template <class T>
void panel_product(const Team& team, const T* packed, int64_t rows, int64_t k, const T* b, int64_t n, T* out,
                   bool downwards);

// The row of timestep t, sequence 0, and of the timestep before it in the direction of the recurrence.
struct LayerNormLstmStep {
  LayerNormLstmStep(const LayerNormLstmOptions& o, int64_t s)
      : row((o.reverse ? o.steps - 1 - s : s) * o.batch), before(row + (o.reverse ? o.batch : -o.batch)) {}
  int64_t row, before;
};

// A row's arrays that both passes read, but for c_prev.
template <class T>
void fill_cell(const LayerNormLstmOptions& o, const LayerNormLstmInputs& in, int64_t row, LayerNormLstmCell<T>& cell) {
  const int64_t H = o.hiddenSize;
  cell.hidden = H;
  cell.products = o.normalize == PRNN_NORMALIZE_PRODUCTS;
  cell.normalizes = o.normalize != PRNN_NORMALIZE_NONE;
  cell.epsilon = static_cast<T>(o.epsilon);
  cell.zoneout = static_cast<T>(o.zoneout);
  cell.gate_gain = static_cast<const T*>(in.gateGain);
  cell.gate_bias = static_cast<const T*>(in.gateBias);
  cell.cell_gain = static_cast<const T*>(in.cellGain);
  cell.cell_bias = static_cast<const T*>(in.cellBias);
  cell.x = static_cast<const T*>(in.x) + row * 4 * H;
  cell.zoneout_mask = in.zoneoutMask != nullptr ? static_cast<const T*>(in.zoneoutMask) + row * H : nullptr;
}

// Whether sequence n has a timestep at row `row` + n.
inline bool runs_at(const LayerNormLstmOptions& o, const LayerNormLstmInputs& in, int64_t row, int64_t n) {
  return in.lengths == nullptr || row / o.batch < in.lengths[n];
}

// Threads for a pass, from the work between two barriers.
inline int layer_norm_lstm_threads(const LayerNormLstmOptions& o) {
  const double hidden = static_cast<double>(o.hiddenSize);
  return team_size(static_cast<double>(o.batch) * (8 * hidden * hidden + 200 * hidden));
}

}  // namespace prnn
