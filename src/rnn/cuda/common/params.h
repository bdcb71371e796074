// Parameters of the resident kernels. docs/resident_kernels.md explains the design.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rnn/plan/shape.h"

namespace prnn {

// One timestep of a variable-length batch: its sequences, and the first of its rows in the packed data.
struct StepSizes {
  int32_t row;
  int32_t batch;
};

// Sizes that the forward and the backward kernel share. "Row" is a row of packed data: row(t) + n.
struct ResidentSizes {
  int hidden;              // H
  int padded;              // H rounded up to whole k-tiles
  int steps;               // T
  int batch;               // N of a uniform batch; of a variable one, the largest
  const StepSizes* table;  // device; NULL: every timestep has `batch` sequences
  int first_column;        // sequences [first_column, first_column + columns) are this launch's
  int columns;
  int columns_per_replica;
  int blocks, replicas;  // of ResidentShape
  int directions;        // in this launch: heads and directions of a layer
  int poll_delay_cycles;
  int relu;         // RNN: 1 relu, 0 tanh
  int exponential;  // sLSTM: 1 an exponential forget gate, 0 a sigmoid one
  int* timed_out;   // host memory: becomes 1 when a block's wait exceeds SpinTimeout

  // Columns of a tile, and columns that all tiles of a timestep have room for; see ForwardDirection::exchange.
  constexpr int tile_columns() const { return columns_per_replica < kTileColumns ? columns_per_replica : kTileColumns; }
  constexpr int replica_tiles() const { return (columns_per_replica + kTileColumns - 1) / kTileColumns; }
  constexpr int exchange_columns() const { return replicas * replica_tiles() * tile_columns(); }
};

// One direction of a layer, or a head of one. Types: void is the problem's.
struct ForwardDirection {
  const void* weights;         // [G H, H]
  const void* input_bias;      // [G H]
  const void* recurrent_bias;  // [G H]
  const void* xw;              // the input products, row r gate g unit u at r * xw_row + g * xw_gate + u
  const void* hx;              // [N, H] or NULL
  const void* cx;
  // The states that the blocks exchange, all bytes 0xFF beforehand. Wgmma kernels: [rows, padded]. The others:
  // [steps, exchange_columns(), padded], a step's states before it: by replica, tile, k-tile, column of the tile.
  void* exchange;
  const void* initial;  // wgmma kernels: [N, padded], h before the first step, without "empty" patterns
  void* y;              // row r unit u at r * y_row + u; NULL (wgmma kernels): `exchange` is y
  void* hy;             // [N, H] or NULL
  void* cy;
  void* gates;           // [rows, H, 4] or NULL: LSTM i f g o, GRU r z n (R h + bR)_n, sLSTM as Cell says, for the
                         // backward pass
  void* cells;           // [rows, H] or NULL: c; sLSTM: c / n
  void* last;            // sLSTM: [2, N, H] or NULL: n and c / n after each sequence's last timestep
  int64_t cell_stride;   // sLSTM: elements from c to n and m in cx, cy and reset_cx
  const uint8_t* reset;  // [rows] or NULL: prnnRNNExtras_t::reset
  const void* reset_hx;  // [N, H] or NULL: the states that a sequence goes on from where it starts anew
  const void* reset_cx;
  int reverse;
};

// Parameters that the kernels of LSTMs with a projection have besides: h = weights m. These serve one direction a
// launch, with one replica; h and its gradients take the place of a direction's h, [N, P], and its weights are [G H,
// P].
struct Projection {
  const void* weights;  // [P, H]
  int states;           // P
  int padded;           // P rounded up to whole k-tiles
  int row;              // elements from row to row of h
  float* sums;          // [tiles, padded / 8, blocks, 64], zeros beforehand: partial sums of the rows
  void* h;              // forward: row r unit p at r * row + p
  // Backward: [rows, P], the whole gradients of h; and [steps, tiles of 8 sequences, padded], all bytes 0xFF
  // beforehand, as ForwardDirection::exchange.
  void* dh;
  void* exchange;
};

// The part of prnnRNNMasks_t that kernels read.
struct StateMasks {
  const void* recurrent[kMaxRecurrences];  // per direction: [N, H] or NULL, what h is multiplied with before R
  float zoneout;                           // gated cells: h = zoneout * h of the timestep before + (1 - zoneout) * h
  bool marked;                             // LSTM: where h stays, xw of o is -infinity, and o is saved as -0

  __host__ __device__ bool zones_out() const { return marked || zoneout > 0; }
  bool any() const { return recurrent[0] != nullptr || zones_out(); }
};

// The timesteps of one direction, as in ResidentSizes. Layers side by side do not have the same ones.
struct DirectionSteps {
  const StepSizes* table;
  int steps, batch;
};

struct ForwardParams {
  ResidentSizes sizes;
  int xw_row, xw_gate, y_row;
  ForwardDirection direction[kMaxRecurrences];
  Projection projection;  // projected kernels
  StateMasks masks;
  DirectionSteps timesteps[kMaxRecurrences];  // split-K wgmma kernels: in place of those of `sizes`

  // Whether a call gives resets (prnnRNNExtras_t) or masks (prnnRNNMasks_t), which take kernels of their own.
  bool has_extras() const { return direction[0].reset != nullptr || masks.any(); }
};

struct BackwardDirection {
  const void* weights;  // [G H, H]
  const void* y;        // row r unit u at r * y_row + u
  const void* dy;       // the same
  const void* hx;       // [N, H] or NULL
  const void* cx;
  const void* dhy;
  const void* dcy;
  const void* dcells;    // LSTM: like dy, or NULL: the gradient of c that the caller was given
  const uint8_t* reset;  // this and the next two as ForwardDirection's
  const void* reset_hx;
  const void* reset_cx;
  float* dreset_hx;  // [N, H] or NULL, zeros beforehand: their gradients are added up here
  float* dreset_cx;
  const void* gates;  // as the forward kernel left them
  const void* cells;
  const void* last;
  int64_t cell_stride;  // sLSTM: as ForwardDirection's, of dcy, dcx and dreset_cx, too
  void* dgates;         // [rows, G, padded], all bytes 0xFF beforehand: gradients of R h + bR, and the exchange buffer
  void* dcandidate;     // GRU: [rows, H], the gradient of (W x + bW)_n, which differs from that of (R h + bR)_n
  void* dhx;            // [N, H] or NULL
  void* dcx;
  float* bias_sums;  // [replicas, B, H], B = 4 (LSTM; GRU: r z n of bW, n of bR) or 1 (RNN)
  int reverse;
};

struct BackwardParams {
  ResidentSizes sizes;
  int y_row;
  BackwardDirection direction[kMaxRecurrences];
  float* sums;  // split-K wgmma kernels: [blocks of the launch][2][G][columns of the kernel][kWgmmaUnits], zeros
                // beforehand
  Projection projection;  // projected kernels
  StateMasks masks;
  DirectionSteps timesteps[kMaxRecurrences];  // as ForwardParams

  // As ForwardParams::has_extras().
  bool has_extras() const { return direction[0].reset != nullptr || direction[0].dcells != nullptr || masks.any(); }
};

}  // namespace prnn
