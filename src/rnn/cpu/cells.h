// The elementwise part of the layers: what happens to one unit block (a panel's width of hidden units) of one timestep
// between two recurrent products.
#pragma once

#include <cstdint>

#include "persistent_rnn.h"
#include "rnn/cpu/layer_norm/kernels.h"

namespace prnn {

// Sequences [0, n) of a timestep. All pointers point to the block's first unit and to sequence 0; strides are in
// elements. G gates; the gates of a sequence lie H apart. Gate order: LSTM i, f, g, o; GRU r, z, n; sLSTM i, f, z, o.
//
// An sLSTM's backward pass needs r = c / n of each timestep, phi = f' n / n' and iota = i' / n' = 1 - phi, from
// which r' = phi r + iota tanh(z): all within [-1, 1], whatever the gates. In place of the activated gates the forward
// pass leaves
//   the smaller of phi and -iota, which is not 0;                                               2 where n was 0
//   1 - sigma(f), or 1 with an exponential forget gate, not 0, and negative where m' = f + m;   f' where n was 0
//   tanh(z),  sigma(o)
template <class T>
struct ForwardCell {
  int64_t n = 0;
  int64_t units = 0;           // in the block, at most a panel's width
  int64_t hidden = 0;          // H
  const T* product = nullptr;  // R h, [G] gates product_stride apart, of [n][panel width]
  int64_t product_stride = 0;
  T* gates = nullptr;  // [n][G H]: in, the input's part with its biases; out, the activated gates, all only if `keep`
  bool keep = false;   // training
  const T* recurrent_bias = nullptr;  // GRU: bR of gate n
  const T* h_prev = nullptr;          // GRU
  int64_t ld_h_prev = 0;
  T* h = nullptr;
  int64_t ld_h = 0;
  const T* c_prev = nullptr;  // LSTM, [n][H]; sLSTM: c, and n and m state_stride apart
  T* c = nullptr;             // the same, may be c_prev
  int64_t state_stride = 0;   // sLSTM
  T* ratio = nullptr;         // sLSTM, training: c / n, [n][H]
  T* candidate = nullptr;     // GRU, training: R h + bR of gate n, [n][H]
  T zoneout = 0;              // GRU: prnnRNNMasks_t::zoneoutExpectation
};

template <class T>
struct BackwardCell {
  int64_t n = 0;
  int64_t units = 0;
  int64_t hidden = 0;
  const T* dy = nullptr;  // gradient of the step's output h
  int64_t ld_dy = 0;
  const T* dh = nullptr;  // what comes from the next timestep, or NULL
  int64_t ld_dh = 0;
  const T* gates = nullptr;  // [n][G H], as the forward pass left them (not RNN)
  const T* h = nullptr;      // RNN
  int64_t ld_h = 0;
  const T* h_prev = nullptr;  // GRU
  int64_t ld_h_prev = 0;
  const T* c = nullptr;          // LSTM, [n][H]; sLSTM: c / n
  const T* c_prev = nullptr;     // LSTM, [n][H]; sLSTM: c / n
  const T* candidate = nullptr;  // GRU, [n][H]
  // [n][H]. LSTM: dc, in and out. GRU: out, z * dh, what reaches h_prev directly. sLSTM, in and out, state_stride
  // apart: n dc, c dc + n dn, and dm - c dc - n dn, the gradient of m with n dc and n dn held. Before a timestep where
  // n was 0, out: dc, dn and 0.
  T* carry = nullptr;
  int64_t state_stride = 0;  // sLSTM
  bool has_carry = false;    // GRU: carry is also read
  T* dgates = nullptr;       // [n][G H]: gradients of R h + bR; but for the GRU's gate n also those of W x + bW
  T* dcandidate = nullptr;   // GRU, [n][H]: gradient of W x + bW of gate n
  T zoneout = 0;             // GRU: as of the forward cell
};

template <class T>
struct CellKernels {
  void (*forward[6])(const ForwardCell<T>&);  // by prnnRNNMode_t
  void (*backward[6])(const BackwardCell<T>&);
  // One sequence of an LSTM on the input of its gates.
  void (*forward_gates)(const LayerNormLstmForwardStep<T>&);
  void (*backward_gates)(const LayerNormLstmBackwardStep<T>&);
};

template <class T>
const CellKernels<T>& cell_kernels();

// The cells of one instruction set, which cells_portable.cc, cells_avx2.cc and cells_avx512.cc define.
struct CellTables {
  CellKernels<float> single;
  CellKernels<double> twice;
};
const CellTables& cell_tables_portable();
const CellTables& cell_tables_avx2();
const CellTables& cell_tables_avx512();

}  // namespace prnn
