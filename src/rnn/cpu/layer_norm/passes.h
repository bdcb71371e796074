// The passes of an LSTM on the input of its gates (RnnProblem::takes_gates()) on the CPU, and their memory. T: float or
// double.
#pragma once

#include "core/cpu/gemm/gemm.h"
#include "core/cuda/arena.h"
#include "rnn/cpu/buffers.h"
#include "rnn/cpu/layer_norm/kernels.h"
#include "rnn/plan/layer_norm.h"
#include "rnn/problem.h"

namespace prnn {

size_t layer_norm_lstm_workspace_cpu(const RnnProblem& problem);
size_t layer_norm_lstm_reserve_cpu(const RnnProblem& problem);
template <class T>
void layer_norm_lstm_forward_cpu(const RnnProblem& problem, const RnnForwardArgs& args);
template <class T>
void layer_norm_lstm_backward_cpu(const RnnProblem& problem, const RnnBackwardArgs& args);

// An arena in a caller's memory, which may lie anywhere; NULL only counts.
inline Arena aligned_arena(void* base) {
  return Arena(base == nullptr ? nullptr : static_cast<char*>(base) + Carver::offset(base));
}
inline size_t size_of(const Arena& arena) { return arena.size() + Carver::kAlign; }  // with room to align the base

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
  LayerNormLstmForwardWorkspace(const RnnProblem& p, void* base)
      : arena(aligned_arena(base)),
        recurrent(take_panels<T>(arena, 4 * p.hidden, p.hidden)),
        products(arena.take<T>(p.max_batch() * 4 * p.hidden)),
        masked(arena.take<T>(p.max_batch() * p.hidden)),
        zeros(arena.take<T>(p.hidden)),
        rows(arena, p.max_batch(), p.hidden) {}

  Arena arena;
  T* recurrent;               // R
  T* products;                // [N][4 H]: R (m * h_{t-1})
  T* masked;                  // [N][H]: m * h_{t-1}
  T* zeros;                   // [H]
  LayerNormLstmRows<T> rows;  // in inference, of the current timestep
};

template <class T>
struct LayerNormLstmBackwardWorkspace {
  LayerNormLstmBackwardWorkspace(const RnnProblem& p, void* base)
      : arena(aligned_arena(base)),
        recurrent(take_panels<T>(arena, p.hidden, 4 * p.hidden)),
        products(arena.take<T>(p.max_batch() * p.hidden)),
        direct(arena.take<T>(p.max_batch() * p.hidden)),
        dc(arena.take<T>(p.max_batch() * p.hidden)),
        zeros(arena.take<T>(p.hidden)),
        scratch(arena.take<T>(p.max_batch() * 2 * p.hidden)),
        sums(arena.take<T>(p.max_batch() * kLayerNormLstmParameterRows * p.hidden)),
        totals(arena.take<double>(p.max_batch() * kLayerNormLstmParameterRows * p.hidden)),
        h_prev(arena.take<T>(p.rows * p.hidden)),
        da(arena.take<T>(p.normalize == PRNN_NORMALIZE_PRODUCTS ? p.rows * 4 * p.hidden : 0)) {}

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
  LayerNormLstmStep(const RnnProblem& p, int64_t s)
      : row((p.reverse ? p.steps() - 1 - s : s) * p.max_batch()),
        before(row + (p.reverse ? p.max_batch() : -p.max_batch())) {}
  int64_t row, before;
};

// A row's arrays that both passes read, but for c_prev.
template <class T, class Args>
void fill_cell(const RnnProblem& p, const Args& args, int64_t row, LayerNormLstmCell<T>& cell) {
  const int64_t H = p.hidden;
  cell.hidden = H;
  cell.products = p.normalize == PRNN_NORMALIZE_PRODUCTS;
  cell.normalizes = p.normalizes();
  cell.epsilon = static_cast<T>(p.epsilon);
  cell.zoneout = static_cast<T>(p.masks.zoneoutExpectation);
  if (p.normalizes()) {
    cell.gate_gain = static_cast<const T*>(args.norm->gateGain);
    cell.gate_bias = static_cast<const T*>(args.norm->gateBias);
    cell.cell_gain = static_cast<const T*>(args.norm->cellGain);
    cell.cell_bias = static_cast<const T*>(args.norm->cellBias);
  }
  cell.x = static_cast<const T*>(args.x) + row * 4 * H;
  cell.zoneout_mask = p.masks.zoneout != nullptr ? static_cast<const T*>(p.masks.zoneout) + row * H : nullptr;
}

// Whether sequence n has a timestep at row `row` + n.
inline bool runs_at(const RnnProblem& p, const int* lengths, int64_t row, int64_t n) {
  return lengths == nullptr || row / p.max_batch() < lengths[n];
}

// Threads for a pass, from the work between two barriers.
inline int layer_norm_lstm_threads(const RnnProblem& p) {
  const double hidden = static_cast<double>(p.hidden);
  return team_size(static_cast<double>(p.max_batch()) * (8 * hidden * hidden + 200 * hidden));
}

}  // namespace prnn
