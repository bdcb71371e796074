// How the caller's workspace and reserve space are divided.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rnn/problem.h"

namespace prnn {

// Cuts arrays, aligned to cache lines, from a piece of memory. With a NULL base it only adds up their sizes.
class Carver {
 public:
  explicit Carver(void* base) : next_(reinterpret_cast<uintptr_t>(base) + offset(base)), begin_(next_) {}

  // Bytes from the base to the first array, less than kAlign.
  static size_t offset(const void* base) { return -reinterpret_cast<uintptr_t>(base) & (kAlign - 1); }

  template <class T>
  T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(next_);
    next_ += (static_cast<size_t>(count) * sizeof(T) + kAlign - 1) & ~(kAlign - 1);
    return taken;
  }
  size_t size() const { return next_ - begin_ + kAlign; }  // with room to align the base

  static constexpr uintptr_t kAlign = 64;

 private:
  uintptr_t next_, begin_;
};

// The arrays that a layer's direction keeps from the forward pass to the backward passes; row r is the packed row of x
// and y. Unless the gates are kept, gates and dgates are one array, and a GRU's cells and dcandidate: a cell's backward
// kernel reads a unit's elements before it writes them, and nothing else reads them.
template <class T>
struct DirectionReserve {
  T* gates;        // [rows][G H] activated; RNN: dgates
  T* dgates;       // [rows][G H] gradients of R h + bR; the backward pass writes them
  T* cells;        // LSTM: c, [rows][H]. GRU: R h + bR of gate n. sLSTM: c / n
  T* last_n;       // sLSTM: n of each sequence's last state, [N][H]
  T* dcandidate;   // GRU: gradient of W x + bW of gate n, [rows][H]
  T* unprojected;  // with a projection: o * tanh(c), [rows][H]
  T* dh;           // with a projection: gradient of h, [rows][P]
};

template <class T>
struct Reserve {
  // keeps_gates: as in RnnBackend::reserve_size().
  Reserve(const RnnProblem& problem, bool keeps_gates, void* base);

  // Without what frozen layers alone would need.
  std::vector<DirectionReserve<T>> directions;  // layer * D K + recurrence
  std::vector<T*> outputs;                      // of every layer but the last, [rows][D P], before dropout
  std::vector<uint8_t*> masks;                  // dropout of those outputs, one byte an element; or NULL
  size_t size;
};

// Rows of the input product that a forward pass computes at a time, but for the last timestep's. Of many rows they are
// few enough for their gates to stay in the cache, and the input weights are packed once for all of them.
template <class T>
int64_t input_rows(const RnnProblem& problem);

constexpr int64_t kTileVectors = 48;  // sequences that one recurrent product serves at a time

// Whether the recurrent weights, and the projection's, are packed. A few timesteps use them as they lie, more of few
// sequences: what is packed is written and read once more.
bool packs_recurrent(const RnnProblem& problem);

template <class T>
struct ForwardWorkspace {
  ForwardWorkspace(const RnnProblem& problem, bool training, void* base);

  T* recurrent;   // packed R, panels of unit blocks, each with its gates
  T* projection;  // packed Wp
  T* input;       // packed W of a direction, where input_rows() are not all rows
  T* bias;        // [G H]
  T* recurrent_bias;
  // Arrays of layers that keep nothing, in inference all, in training those that are frozen:
  T* gates;        // [at most input_rows() + N][G H]
  T* between;      // with more than one of them: a layer's output
  T* cells;        // [N][H]; sLSTM, of all layers: c, n and m, [3][N][H]
  T* unprojected;  // [N][H]
  T* dropped;      // training with dropout: a layer's input, [rows][D P]
  T* zeros;        // [N][H], initial states that are NULL; cells of as many states as there are
  // With prnnRNNMasks_t::recurrent: what R reads, [N][H] each, in even and odd steps, in the first, and where a
  // sequence starts anew.
  T *masked[2], *masked_initial, *masked_reset;
  size_t size;
};

template <class T>
struct BackwardDataWorkspace {
  BackwardDataWorkspace(const RnnProblem& problem, void* base);

  T* recurrent;   // packed R^T, panels of P; where it is not packed, of its last columns, if they are no whole panel
  T* projection;  // packed Wp^T, panels of H, likewise
  T* dy;          // L > 1: gradient of a layer's output, and then of its input, [rows][D P]
  T* carry;       // [N][H]; sLSTM: [3][N][H]
  T *ratio, *reset_ratio;  // sLSTM: c / n of the initial states and of those of sequences that start anew, [N][H]
  // LSTM with zoneout, [N][H], or NULL: as the carry of a GRU, which is h's; and the part of h's gradients that is the
  // cells'.
  T *carried_h, *dh_of_cells;
  T* zeros;  // [N][H]; sLSTM: [3][N][H]
  size_t size;
};

template <class T>
struct BackwardWeightsWorkspace {
  BackwardWeightsWorkspace(const RnnProblem& problem, void* base);

  T* h_prev;     // [rows][P], the state that each row started from
  T* dropped;    // [rows][D P]
  double* sums;  // of a direction's dgates, [G H], and of a GRU's dcandidate, [H]
  size_t size;
};

// Bytes of the workspace: the largest of any pass.
template <class T>
size_t rnn_workspace_size(const RnnProblem& problem);

}  // namespace prnn
