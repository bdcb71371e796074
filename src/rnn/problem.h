// The seam between the RNN API layer and what computes it: the API layer validates a call and builds an RnnProblem and
// an argument struct; a backend (cpu/, cuda/) answers sizes and runs. Backends do not validate, the API does not
// compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "prnn_call.h"

namespace prnn {

// The needs of a call beyond a plain layer, a bit each. rnn/plan/engines.h says which kernels, which schedules of a
// stack and which backends serve what.
struct Needs {
  enum : uint32_t {
    kLengths = 1 << 0,      // sequences of different lengths
    kReset = 1 << 1,        // prnnRNNExtras_t::reset
    kResetStates = 1 << 2,  // resetHx, resetCx or their gradients
    kCells = 1 << 3,        // c of every timestep, for the caller
    kDcells = 1 << 4,       // the gradient of c of every timestep
    kMasks = 1 << 5,        // masks within a timestep: recurrent dropout, zoneout of an LSTM, zoneout's expectation
    kZoneout = 1 << 6,      // zoneout of a GRU, which its input products carry
    kDropout = 1 << 7,      // between layers
    kProjection = 1 << 8,
    kHeads = 1 << 9,  // block-diagonal recurrent weights
    kTwoDirections = 1 << 10,
    kFrozenLayers = 1 << 11,  // lowest layers without gradients
    kUnaligned = 1 << 12,     // y or w, which kernels read, is not aligned to 16 bytes
    kSkipInput = 1 << 13,     // a first layer without input matrices
    kChosenSplit = 1 << 14,   // prnnSetRNNPlan
    kSlstm = 1 << 15,         // a cell that only some engines and schedules know
    kAll = (1 << 16) - 1,     // but for the next
    kLstmOfGates = 1 << 16    // RnnProblem::takes_gates(), which has engines of its own
  };
};

constexpr bool is_slstm(prnnRNNMode_t mode) { return mode == PRNN_SLSTM || mode == PRNN_SLSTM_EXP; }

// Dropout between layers. `states` points to a DropoutStates in device memory; see core/descriptors.h.
struct Dropout {
  float probability = 0;
  void* states = nullptr;
};

// Rows of data, batches summed over timesteps, that the resident kernels count.
constexpr int64_t kMostRows = INT32_MAX;

// One RNN call's sizes. Notation as in persistent_rnn.h.
struct RnnProblem {
  prnnRNNMode_t mode = PRNN_LSTM;
  prnnDataType_t type = PRNN_DATA_FLOAT;
  int64_t hidden = 0;      // H, of one head
  int64_t heads = 1;       // K
  int64_t projection = 0;  // P of an LSTM with a projection; 0: none
  int64_t input = 0;       // I
  int64_t layers = 1;      // L
  int64_t directions = 1;  // D
  int64_t frozen = 0;      // the lowest layers, of which and of whose data no gradients are wanted
  bool skip_input = false;
  bool gates_input = false;  // x has the first layer's input products
  bool reverse = false;      // one direction, from the last timestep on; this and the next two: where takes_gates()
  prnnNormalization_t normalize = PRNN_NORMALIZE_NONE;
  double epsilon = 0;                             // of the normalisation's statistics
  bool tf32 = false;                              // products of float matrices may be rounded to tf32
  prnnRNNPlan_t forward_plan{}, backward_plan{};  // that the caller asks for; BEST: none
  Dropout dropout;
  bool training = true;  // the calls of a training step; false: inference
  prnnRNNExtras_t extras{};
  prnnRNNMasks_t masks{};
  bool aligned = true;         // y and w of a forward call are aligned to 16 bytes
  bool gives_dx = true;        // a call of backward_data() has dx
  std::vector<int64_t> batch;  // B_t, one entry a timestep, non-increasing, each >= 1
  int64_t rows = 0;            // sum of B_t

  int64_t steps() const { return static_cast<int64_t>(batch.size()); }  // T
  int64_t max_batch() const { return batch.front(); }                   // N
  // Every head of every direction has recurrent weights of its own. Recurrence r is head r % K of direction r / K.
  int64_t recurrences() const { return directions * heads; }
  int64_t direction_of(int64_t recurrence) const { return recurrence / heads; }
  int64_t state() const { return projection > 0 ? projection : hidden; }  // P
  bool is_slstm() const { return prnn::is_slstm(mode); }
  int64_t gates() const { return mode == PRNN_LSTM || is_slstm() ? 4 : mode == PRNN_GRU ? 3 : 1; }
  // States of a unit beside h, which cx and its like have: c; an sLSTM's c, n and m.
  int64_t cell_states() const { return mode == PRNN_LSTM ? 1 : is_slstm() ? 3 : 0; }
  int64_t layer_input(int64_t layer) const { return layer == 0 ? input : recurrences() * state(); }
  // Where a row of x has the input of a recurrence's gate, in a first layer without input matrices.
  int64_t first_input(int64_t recurrence, int64_t gate) const {
    return gates_input ? ((direction_of(recurrence) * gates() + gate) * heads + recurrence % heads) * hidden : 0;
  }
  int64_t hidden_of_heads() const { return hidden * heads; }
  uint32_t needs() const;  // bits of Needs
  // An LSTM on the input of its gates, normalised or not, which has engines and passes of its own: cuda/layer_norm and
  // cpu/layer_norm.
  bool takes_gates() const { return gates_input && mode == PRNN_LSTM; }
  bool normalizes() const { return normalize != PRNN_NORMALIZE_NONE; }
  bool zones_out() const { return masks.zoneout != nullptr || masks.zoneoutExpectation > 0; }
  bool has_input_matrices(int64_t layer) const { return layer > 0 || !(skip_input || gates_input); }
};

bool operator==(const RnnProblem& a, const RnnProblem& b);

// Turns a problem into that of inference, where nothing is dropped.
inline RnnProblem inference_of(RnnProblem problem) {
  problem.training = false;
  problem.dropout = {};
  return problem;
}

// Offsets, in elements, inside the packed weights (persistent_rnn.h). `input` is the [G H, layer_input] block of the
// recurrence's input matrices (gates one after the other), `recurrent` the [G H, P] block, `projection` the [P, H]
// matrix; the two biases are [G H] each. -1 where the layer has no such block. The blocks of a direction's heads follow
// each other, those of each kind together.
struct RnnLayerOffsets {
  int64_t input, recurrent, projection, input_bias, recurrent_bias;
};
RnnLayerOffsets rnn_layer_offsets(const RnnProblem& problem, int64_t layer, int64_t recurrence);
int64_t rnn_params_count(const RnnProblem& problem);  // elements

// One gate's matrix or bias in the packed weights, or the projection, by linLayerID: offset and size in elements. None:
// offset -1.
struct WeightBlock {
  int64_t offset = -1;
  int64_t elements = 0;
};
constexpr int kProjectionId = 8;  // the linLayerID of the LSTM projection, for all cells out of the gates' range
WeightBlock rnn_matrix(const RnnProblem& problem, int64_t layer, int64_t recurrence, int linLayerID);
WeightBlock rnn_bias(const RnnProblem& problem, int64_t layer, int64_t recurrence, int linLayerID);

// The arrays of a run (prnn_call.h) as a backend gets them: cx and the like are NULL where the cell has none, `reserve`
// is the backend's part, NULL in inference, and extras and masks are the problem's.
// keeps_gates: that of RnnBackend::reserve_size(), for the reserve space that was given; the same in all calls of a
// training step.
struct RnnForwardArgs : prnnRNNForwardArgs_t {
  bool keeps_gates = true;
};

struct RnnBackwardDataArgs : prnnRNNBackwardDataArgs_t {
  bool keeps_gates = true;
};

struct RnnBackwardWeightsArgs : prnnRNNBackwardWeightsArgs_t {
  bool keeps_gates = true;
  bool adds = true;  // to dw; false, on a CPU alone: it is overwritten
};

struct RnnBackwardArgs : prnnRNNBackwardArgs_t {
  bool keeps_gates = true;
};

// A backend. Both sizes are upper bounds over the calls for this problem, and monotonic enough that a caller who asked
// with the same descriptors always has room. keeps_gates: the backward calls may come again after one forward call;
// else backward_data() may leave gradients where the gates were, and the size is no larger. cuDNN never keeps them.
class RnnBackend {
 public:
  virtual ~RnnBackend() = default;
  virtual prnnRNNBackend_t kind() const { return PRNN_PERSISTENT_BACKEND; }
  virtual size_t workspace_size(prnnHandle_t, const RnnProblem&) const = 0;
  virtual size_t reserve_size(prnnHandle_t, const RnnProblem&, bool keeps_gates) const = 0;
  virtual void forward(prnnHandle_t, const RnnProblem&, const RnnForwardArgs&) const = 0;
  virtual void backward_data(prnnHandle_t, const RnnProblem&, const RnnBackwardDataArgs&) const = 0;
  virtual void backward_weights(prnnHandle_t, const RnnProblem&, const RnnBackwardWeightsArgs&) const = 0;
  // All gradients of a problem that takes_gates(), which has no other backward pass. cuDNN serves none.
  virtual void backward(prnnHandle_t, const RnnProblem&, const RnnBackwardArgs&) const {}
};

using SharedRnnBackend = std::shared_ptr<const RnnBackend>;
SharedRnnBackend cpu_rnn_backend(const RnnProblem& problem);  // or NOT_SUPPORTED. src/rnn/cpu/
// The backend that serves the problem on a CUDA handle, or NOT_SUPPORTED with the limit that was broken. src/rnn/cudnn/
SharedRnnBackend cuda_rnn_backend(prnnHandle_t handle, prnnRNNBackend_t wanted, const RnnProblem& problem);

}  // namespace prnn
