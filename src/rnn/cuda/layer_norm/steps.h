// The kernels around the matrix products of Engine::kNormSteps, and what follows a backward pass of any engine.
#pragma once

#include "core/handle.h"
#include "rnn/cuda/layer_norm/params.h"

namespace prnn {

// Step s of all sequences. `product`: {N, 4, H}, R (m * h_{t-1}). `c`: {N, H}, c_{t-1} and then c_t. `masked`: {N, H}
// of the problem's type, m * h_t; NULL without a mask.
template <class Real>
void run_layer_norm_lstm_forward_step(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int s,
                                      const Real* product, Real* c, void* masked, cudaStream_t stream);

// `product`: {parts, N, H}, one, or in 16 bits up to four, that add up to R' da of the step after, NULL at the last
// one. `direct`, `dc`: {N, H}, the gradient of h that went past the matrix and that of c, of step s and then of the one
// before.
template <class Real>
void run_layer_norm_lstm_backward_step(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int s,
                                       const Real* product, int parts, Real* direct, Real* dc, cudaStream_t stream);

// to = from times `mask`, of the problem's type.
template <class Real>
void mask_layer_norm_lstm_state(prnnDataType_t type, int64_t elements, const void* from, const void* mask, void* to,
                                cudaStream_t stream);

// `c` = `from` (zeros where NULL).
template <class Real>
void load_layer_norm_lstm_state(prnnDataType_t type, int64_t elements, const void* from, Real* to, cudaStream_t stream);

// dh0 = direct + mask * product, which is as above, and dc0 = dc.
template <class Real>
void store_layer_norm_lstm_initial(prnnDataType_t type, const LayerNormLstmParams<Real>& params, const Real* product,
                                   int parts, const Real* direct, const Real* dc, cudaStream_t stream);

// m * h_{t-1} of all rows: {T, N, H}.
template <class Real>
void gather_layer_norm_lstm_states(prnnDataType_t type, const LayerNormLstmParams<Real>& params, void* h_prev,
                                   cudaStream_t stream);

// Adds `partials` of params.sums, in order, and stores rows [first, first + count) of H elements.
template <class Real>
void store_layer_norm_lstm_sums(prnnDataType_t type, const LayerNormLstmParams<Real>& params, int64_t partials,
                                int first, int count, void* out, cudaStream_t stream);

}  // namespace prnn
