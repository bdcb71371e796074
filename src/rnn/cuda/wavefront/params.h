// Parameters of the wavefront kernels: several layers of a stack in one launch, each in blocks of its
// own. docs/resident_kernels.md, section wavefront, explains the design.
#pragma once

#include "rnn/cuda/common/params.h"
#include "rnn/plan/wavefront.h"

namespace prnn {

// H is a multiple of a k-tile, so that `padded` is H. ResidentSizes::directions counts the launch's layers.

// Dropout between a layer and the one above it in the launch.
struct ForwardDropout {
  const uint8_t* kept;  // [rows, H / 8]: whether unit u is kept is bit u % 8 of byte u / 8
  void* dropped;        // [rows, H], all bytes 0xFF beforehand, aligned to 16 bytes: y after dropout; NULL: no dropout
};

// Kernels by chunks, LSTM: a projection between two layers of the launch with dropout after it, which the layer above
// makes of a chunk forward, and the layer below backward; without dropout the input matrices are products with it.
struct ChunkedProjection {
  const void* matrix;   // [P, H]; NULL: none
  const uint8_t* kept;  // [rows, P / 8], as ForwardDropout's
  void* states;         // [rows, P]: h of the layer below; backward, its gradients from the layer above
  void* dropped;        // [rows, P]: h after dropout; forward
  unsigned* progress;   // blocks of the layer that have made their columns of a chunk, as the layer's
};

struct WavefrontForwardLayer {
  const void* recurrent;   // [G H, H]
  const void* input;       // [G H, H]: the input matrices, used where `below` is not NULL; [G H, P] where `projection`
                           // is there
  const void* input_bias;  // [G H]
  const void* recurrent_bias;  // [G H]
  const void* below;           // [rows, H]: `dropped`, else `y`, of the layer below; NULL for the lowest one
  const void* initial;         // [N, H]: h before the first step, without "empty" patterns
  const void* hx;              // [N, H] or NULL
  const void* cx;
  void* y;   // [rows, H], all bytes 0xFF beforehand; aligned to 16 bytes
  void* hy;  // [N, H] or NULL
  void* cy;
  void* gates;  // as ForwardDirection's
  void* cells;
  // Kernels by chunks. They read no `initial`, and what `y` and ForwardDropout::dropped are beforehand does not matter.
  void* exchange;                  // [steps, columns of the tile, H]: as ForwardDirection::exchange
  void* products;                  // [a chunk's rows, H, G]; NULL for the lowest layer
  const float* initial_products;   // [N, G, H]: added to the input products of the first timestep; NULL: none. Not of
                                   // the lowest layer
  const unsigned* below_progress;  // `progress` of the layer below; NULL for the lowest one
  unsigned* progress;              // blocks that have finished a chunk, of all chunks together, 0 beforehand; NULL for
                                   // the highest layer
  ChunkedProjection projection;    // of the layer below
};

struct WavefrontForwardParams {
  ResidentSizes sizes;
  const void* xw;  // the lowest layer's input products, row r gate g unit u at r * xw_row + g * xw_gate + u
  int xw_row, xw_gate;
  WavefrontForwardLayer layer[kWavefrontLayers];
  float dropout_scale;  // of what is kept; 0: no dropout
  ForwardDropout dropout[kWavefrontLayers];
  int chunk_steps;  // kernels by chunks: timesteps of a chunk
  // Kernels by chunks: P, a multiple of kChunkedColumnsK, where layers have a ChunkedProjection, else 0; and how many
  // of these columns a block makes.
  int projection, projection_columns;

  bool has_extras() const { return sizes.table != nullptr || dropout_scale > 0; }
};

struct WavefrontBackwardLayer {
  const void* recurrent;    // [G H, H]
  const void* input_above;  // [G H, H]: the input matrices of the layer above; used where `above` is not NULL; [G H,
                            // P] where `projection` is there
  const void* above;        // [rows, G, H]: `dgates` of the layer above in this launch; NULL for the highest one
  const void* candidate_above;  // GRU: its `dcandidate`
  const void* y;                // [rows, H]
  const void* hx;               // [N, H] or NULL
  const void* cx;
  const void* dhy;
  const void* dcy;
  const void* gates;  // as the forward kernel left them
  const void* cells;
  void* dgates;      // [rows, G, H], all bytes 0xFF beforehand
  void* dcandidate;  // GRU: [rows, H], all bytes 0xFF beforehand where a layer of this launch lies below
  void* dhx;         // [N, H] or NULL
  void* dcx;
  float* bias_sums;  // [replicas, B, H]
  // Kernels by chunks. What `dgates` is beforehand does not matter; it may be where `gates` of the layer above are. A
  // GRU's and those above are [rows, 4, H], the candidate's gradient of W x in the end; `dcandidate` is not used.
  void* exchange;                  // ChunkedBackwardExchange of the steps of the ring, all bytes 0xFF beforehand
  void* products;                  // [64, H], of a chunk: dy; NULL for the highest layer
  const unsigned* above_progress;  // `progress` of the layer above; NULL for the highest one
  unsigned* progress;              // blocks that have finished a chunk, of all chunks together, 0 beforehand
  ChunkedProjection projection;    // of this layer
};

struct WavefrontBackwardParams {
  ResidentSizes sizes;
  const void* dy;  // [rows, H]: of the highest layer
  WavefrontBackwardLayer layer[kWavefrontLayers];
  float dropout_scale;
  const uint8_t* kept[kWavefrontLayers];  // ForwardDropout::kept; NULL: no dropout
  int chunk_steps;                        // kernels by chunks: timesteps of a chunk
  int projection, projection_columns;     // as WavefrontForwardParams', the columns of a cluster

  bool has_extras() const { return sizes.table != nullptr || dropout_scale > 0; }
};

}  // namespace prnn
